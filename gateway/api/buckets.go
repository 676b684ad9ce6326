package api

import (
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// bucketOf returns the bucket as the API shows it.
func bucketOf(b wire.Bucket) wire.Bucket {
	b.CreatedAt = b.CreatedAt.UTC()
	if b.Prefixes == nil {
		b.Prefixes = []wire.PrefixRule{}
	}
	return b
}

// bucketCalls are the calls about buckets.
type bucketCalls struct {
	buckets Buckets // nil: there is no S3 port
	journal *journal
}

var errNoS3Port = fmt.Errorf("%w: this gateway serves no S3", ErrNotImplemented)

// bucketName reads the bucket's name from the path.
func bucketName(c echo.Context) (string, error) {
	name := pathParam(c, "bucket")
	return name, storable("bucket", name)
}

// ensure creates a bucket or changes its settings.
func (b *bucketCalls) ensure(c echo.Context) error {
	var body wire.BucketRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	switch {
	case b.buckets == nil:
		return errNoS3Port
	case body == wire.BucketRequest{}:
		return &fence.InvalidError{Field: "rule", Reason: "and keep and write_once are missing; one of them is needed"}
	}
	name, err := bucketName(c)
	if err != nil {
		return err
	}
	created, err := b.buckets.EnsureBucket(c.Request().Context(), name, body)
	if err != nil {
		return err
	}
	b.journal.audit(c.Request(), "a bucket was set by an operator", "bucket", name, "created", created, "rule", body.Rule, "keep", body.Keep, "write_once", body.WriteOnce)
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return halfDone(b.show(c, status, name), notShownHint)
}

// notShownHint is the hint if a bucket was set and can't be shown.
const notShownHint = "It was done, but the bucket could not be read afterwards."

func (b *bucketCalls) show(c echo.Context, status int, name string) error {
	found, err := b.buckets.InspectBucket(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return respond(c, status, bucketOf(found))
}

func (b *bucketCalls) inspect(c echo.Context) error {
	if b.buckets == nil {
		return errNoS3Port
	}
	name, err := bucketName(c)
	if err != nil {
		return err
	}
	return b.show(c, http.StatusOK, name)
}

// list pages through the buckets, ordered by name.
func (b *bucketCalls) list(c echo.Context) error {
	query, err := queryOf(c, "after", "limit")
	if err != nil {
		return err
	}
	limit, err := limitIn(query)
	if err != nil {
		return err
	}
	after := query.Get("after")
	if err := storable("after", after); err != nil {
		return err
	}
	if b.buckets == nil {
		return errNoS3Port
	}
	found, err := b.buckets.ListBuckets(c.Request().Context(), after, limit)
	if err != nil {
		return err
	}
	answer := wire.Buckets{Buckets: []wire.Bucket{}}
	for _, one := range found {
		answer.Buckets = append(answer.Buckets, bucketOf(one))
	}
	if len(found) == limit {
		answer.Next = &found[limit-1].Bucket
	}
	return respond(c, http.StatusOK, answer)
}

// setRule sets the rule of a prefix.
func (b *bucketCalls) setRule(c echo.Context) error {
	var body wire.PrefixRule
	if err := decode(c, &body); err != nil {
		return err
	}
	if b.buckets == nil {
		return errNoS3Port
	}
	name, err := bucketName(c)
	if err != nil {
		return err
	}
	if err := b.buckets.SetPrefixRule(c.Request().Context(), name, body.Prefix, body.Rule); err != nil {
		return err
	}
	b.journal.audit(c.Request(), "a prefix's rule was set by an operator", "bucket", name, "prefix", body.Prefix, "rule", body.Rule)
	return halfDone(b.show(c, http.StatusOK, name), notShownHint)
}

// dropRule drops the rule of a prefix.
func (b *bucketCalls) dropRule(c echo.Context) error {
	query, err := queryOf(c, "prefix")
	if err != nil {
		return err
	}
	prefix := query.Get("prefix")
	if prefix == "" {
		return &fence.InvalidError{Field: "prefix", Reason: "is missing in the query"}
	}
	if err := storable("prefix", prefix); err != nil {
		return err
	}
	if b.buckets == nil {
		return errNoS3Port
	}
	name, err := bucketName(c)
	if err != nil {
		return err
	}
	if err := b.buckets.DropPrefixRule(c.Request().Context(), name, prefix); err != nil {
		return err
	}
	b.journal.audit(c.Request(), "a prefix's rule was dropped by an operator", "bucket", name, "prefix", prefix)
	return halfDone(b.show(c, http.StatusOK, name), notShownHint)
}

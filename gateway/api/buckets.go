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

var errNoS3Port = fmt.Errorf("%w: this gateway serves no S3", ErrNotImplemented)

// ensureBucket creates a bucket or changes its settings.
func (s *Server) ensureBucket(c echo.Context) error {
	var body wire.BucketRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	switch {
	case s.cfg.Buckets == nil:
		return errNoS3Port
	case body == wire.BucketRequest{}:
		return &fence.InvalidError{Field: "rule", Reason: "and keep and write_once are missing; one of them is needed"}
	}
	name, err := bucketName(c)
	if err != nil {
		return err
	}
	created, err := s.cfg.Buckets.EnsureBucket(c.Request().Context(), name, body)
	if err != nil {
		return err
	}
	s.audit(c, "a bucket was set by an operator", "bucket", name, "created", created, "rule", body.Rule, "keep", body.Keep, "write_once", body.WriteOnce)
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return halfDone(s.tellBucket(c, status, name), unreadHint)
}

// unreadHint is the hint if a bucket was set and can't be shown.
const unreadHint = "It was done, but the bucket could not be read afterwards."

func (s *Server) tellBucket(c echo.Context, status int, name string) error {
	found, err := s.cfg.Buckets.InspectBucket(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return respond(c, status, bucketOf(found))
}

func (s *Server) inspectBucket(c echo.Context) error {
	if s.cfg.Buckets == nil {
		return errNoS3Port
	}
	name, err := bucketName(c)
	if err != nil {
		return err
	}
	return s.tellBucket(c, http.StatusOK, name)
}

// listBuckets pages through the buckets, ordered by name.
func (s *Server) listBuckets(c echo.Context) error {
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
	if s.cfg.Buckets == nil {
		return errNoS3Port
	}
	found, err := s.cfg.Buckets.ListBuckets(c.Request().Context(), after, limit)
	if err != nil {
		return err
	}
	answer := wire.Buckets{Buckets: []wire.Bucket{}}
	for _, b := range found {
		answer.Buckets = append(answer.Buckets, bucketOf(b))
	}
	if len(found) == limit {
		answer.Next = &found[limit-1].Bucket
	}
	return respond(c, http.StatusOK, answer)
}

// setPrefixRule sets the rule of a prefix.
func (s *Server) setPrefixRule(c echo.Context) error {
	var body wire.PrefixRule
	if err := decode(c, &body); err != nil {
		return err
	}
	if s.cfg.Buckets == nil {
		return errNoS3Port
	}
	name, err := bucketName(c)
	if err != nil {
		return err
	}
	if err := s.cfg.Buckets.SetPrefixRule(c.Request().Context(), name, body.Prefix, body.Rule); err != nil {
		return err
	}
	s.audit(c, "a prefix's rule was set by an operator", "bucket", name, "prefix", body.Prefix, "rule", body.Rule)
	return halfDone(s.tellBucket(c, http.StatusOK, name), unreadHint)
}

// dropPrefixRule drops the rule of a prefix.
func (s *Server) dropPrefixRule(c echo.Context) error {
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
	if s.cfg.Buckets == nil {
		return errNoS3Port
	}
	name, err := bucketName(c)
	if err != nil {
		return err
	}
	if err := s.cfg.Buckets.DropPrefixRule(c.Request().Context(), name, prefix); err != nil {
		return err
	}
	s.audit(c, "a prefix's rule was dropped by an operator", "bucket", name, "prefix", prefix)
	return halfDone(s.tellBucket(c, http.StatusOK, name), unreadHint)
}

package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/wire"
)

// buckets serves the API's buckets from the S3 gateway.
type buckets struct{ catalog *objects.Catalog }

var _ api.Buckets = buckets{}

func (b buckets) EnsureBucket(ctx context.Context, name string, want wire.BucketRequest) (created bool, err error) {
	var set objects.BucketSettings
	if want.Rule != "" {
		set.Rule, err = setting(objects.ParseRule(want.Rule))
	}
	if want.Keep != "" && err == nil {
		set.Keep, err = setting(objects.ParseKeep(want.Keep))
	}
	if want.WriteOnce != "" && err == nil {
		set.Retained, err = setting(objects.ParseRetention(want.WriteOnce))
	}
	if err != nil {
		return false, err
	}
	created, err = b.catalog.SetBucket(ctx, name, set)
	return created, bucketError(ctx, name, err)
}

func setting[T any](v T, err error) (*T, error) { return &v, err }

func (b buckets) InspectBucket(ctx context.Context, name string) (wire.Bucket, error) {
	found, err := b.catalog.Bucket(ctx, name)
	return shownBucket(found), bucketError(ctx, name, err)
}

func (b buckets) ListBuckets(ctx context.Context, after string, limit int) ([]wire.Bucket, error) {
	found, err := b.catalog.Buckets(ctx, after, limit)
	all := make([]wire.Bucket, len(found))
	for i, one := range found {
		all[i] = shownBucket(one)
	}
	return all, bucketError(ctx, "", err)
}

func shownBucket(b objects.Bucket) wire.Bucket {
	shown := wire.Bucket{Bucket: b.Name, Rule: b.Rule.String(), Keep: b.Keep.String(), WriteOnce: objects.ShowRetention(b.Retained), CreatedAt: b.Created}
	for _, p := range b.Prefixes {
		shown.Prefixes = append(shown.Prefixes, wire.PrefixRule{Prefix: p.Prefix, Rule: p.Rule.String()})
	}
	return shown
}

func (b buckets) SetPrefixRule(ctx context.Context, name, prefix, text string) error {
	rule, err := objects.ParseRule(text)
	if err != nil {
		return err
	}
	return bucketError(ctx, name, b.catalog.SetPrefixRule(ctx, name, prefix, rule))
}

func (b buckets) DropPrefixRule(ctx context.Context, name, prefix string) error {
	return bucketError(ctx, name, b.catalog.DropPrefixRule(ctx, name, prefix))
}

func bucketError(ctx context.Context, name string, err error) error {
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, fence.ErrInvalid):
		return err
	case errors.Is(err, objects.ErrRuleInUse):
		return fmt.Errorf("%w: %w; it holds objects that were written under another rule: remove them first, or use another bucket or prefix", api.ErrConflict, objects.ErrRuleInUse)
	case errors.Is(err, objects.ErrRetained):
		return fmt.Errorf("%w: %w: the retention can be extended, but shortened only while the bucket is empty", api.ErrConflict, objects.ErrRetained)
	case errors.Is(err, objects.ErrNoBucket):
		return fmt.Errorf("%w: there is no bucket %q; name a rule to create it", api.ErrNotFound, name)
	}
	return &leasing.UnavailableError{Part: wire.PartPostgres, Cause: err}
}

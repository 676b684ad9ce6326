package objects

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/fence"
)

const (
	sqlCreateBucket = "SELECT created, current_depth, current_mode FROM objects.create_bucket($1, $2, $3)"
	// One statement is one transaction. What is not named is not changed.
	sqlSetBucket = `SELECT CASE WHEN $2::integer IS NULL THEN false ELSE objects.ensure_bucket($1, $2, $3) END,
	CASE WHEN $4 THEN objects.set_keep($1, $5, $6)::text END,
	CASE WHEN $7 THEN objects.set_retention($1, $8)::text END`
	sqlPrefixRule   = "SELECT objects.set_prefix_rule($1, $2, $3, $4)"
	sqlDeleteBucket = "SELECT objects.delete_bucket($1)"
	sqlRule         = "SELECT r.depth, r.mode FROM objects.rule_of($1, $2) r WHERE r.depth IS NOT NULL" // all NULL without the bucket
	sqlListBuckets  = "SELECT name, created_at FROM objects.buckets WHERE name > $1 AND starts_with(name, $2) ORDER BY name LIMIT $3"
	sqlKeep         = "SELECT keep_count, keep_age FROM objects.buckets WHERE name = $1"
)

// CreateBucket creates the bucket if there is none. It reports whether it did, even if an acknowledgement was lost, and
// the bucket's rule.
func (c *Catalog) CreateBucket(ctx context.Context, bucket string, rule Rule) (created bool, current Rule, err error) {
	lost := false
	err = c.db.Settle(ctx, func(ctx context.Context, q Querier) error {
		var mode string
		err := q.QueryRow(ctx, sqlCreateBucket, bucket, rule.depth, rule.stored()).Scan(&created, &current.depth, &mode)
		current.read(mode)
		created = created || lost && current == rule
		lost = lost || inDoubt(err)
		return err
	})
	return created, current, err
}

// setBucket sets all settings, or none; created says whether it created the bucket.
func (c *Catalog) setBucket(ctx context.Context, bucket string, set BucketSettings) (created bool, err error) {
	var depth *int
	var mode string
	var count pgtype.Int4
	var age, retention pgtype.Interval
	if set.Rule != nil {
		depth, mode = &set.Rule.depth, set.Rule.stored()
	}
	if k := set.Keep; k != nil {
		count = pgtype.Int4{Int32: int32(k.Versions), Valid: !k.All && k.For == 0}
		if k.For > 0 {
			age = Interval(k.For)
		}
	}
	if set.Retained != nil {
		retention = Interval(*set.Retained)
		retention.Valid = *set.Retained > 0
	}
	err = c.db.Settle(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlSetBucket, bucket, depth, mode, set.Keep != nil, count, age, set.Retained != nil, retention).Scan(&created, nil, nil)
	})
	return created, err
}

// prefixRule sets the rule of a prefix; nil drops it.
func (c *Catalog) prefixRule(ctx context.Context, bucket, prefix string, rule *Rule) error {
	var depth *int
	mode := ""
	if rule != nil {
		depth, mode = &rule.depth, rule.stored()
	}
	return c.db.Settle(ctx, Exec(sqlPrefixRule, bucket, prefix, depth, mode))
}

// DeleteBucket deletes an empty bucket. It succeeds even if an acknowledgement was lost.
func (c *Catalog) DeleteBucket(ctx context.Context, bucket string) error {
	err := c.db.Settle(ctx, Exec(sqlDeleteBucket, bucket))
	if errors.Is(err, fence.ErrUnknown) && errors.Is(err, ErrNoBucket) {
		return nil // an attempt whose answer was lost deleted it
	}
	return err
}

// Rule returns the bucket's rule, or [ErrNoBucket].
func (c *Catalog) Rule(ctx context.Context, bucket string) (Rule, error) {
	return c.RuleOf(ctx, bucket, "")
}

// RuleOf returns the rule of a key, or [ErrNoBucket].
func (c *Catalog) RuleOf(ctx context.Context, bucket, key string) (Rule, error) {
	var r Rule
	var mode string
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlRule, bucket, key).Scan(&r.depth, &mode)
	})
	r.read(mode)
	return r, noRows(err, ErrNoBucket)
}

// Keep returns what a bucket keeps, or [ErrNoBucket].
func (c *Catalog) Keep(ctx context.Context, bucket string) (Keep, error) {
	var count pgtype.Int4
	var age pgtype.Interval
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error { return q.QueryRow(ctx, sqlKeep, bucket).Scan(&count, &age) })
	if err = noRows(err, ErrNoBucket); err != nil {
		return Keep{}, err
	}
	return keepOf(count, age), nil
}

// BucketEntry is a bucket in a list.
type BucketEntry struct {
	Name    string
	Created time.Time
}

// ListBuckets lists at most limit buckets whose names begin with prefix, after the given name, ordered by name.
func (c *Catalog) ListBuckets(ctx context.Context, after, prefix string, limit int) ([]BucketEntry, error) {
	var all []BucketEntry
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		rows, err := q.Query(ctx, sqlListBuckets, after, prefix, limit)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[BucketEntry])
		return err
	})
	return all, err
}

package objects

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/fence"
)

// What operators do with buckets, outside of S3.

// Bucket is a bucket with its settings.
type Bucket struct {
	Name     string
	Created  time.Time
	Rule     Rule
	Keep     Keep
	Retained time.Duration  // the retention of write-once objects; 0: not write-once
	Prefixes []PrefixRuleOf // ordered by their bytes
}

// PrefixRuleOf is the rule of the keys that begin with a prefix.
type PrefixRuleOf struct {
	Prefix string
	Rule   Rule
}

const (
	bucketColumns = `SELECT b.name, b.created_at, b.depth, b.mode, b.keep_count, b.keep_age, b.retention,
  array(SELECT r.prefix FROM objects.prefix_rules r WHERE r.bucket = b.name ORDER BY r.prefix),
  array(SELECT r.depth FROM objects.prefix_rules r WHERE r.bucket = b.name ORDER BY r.prefix),
  array(SELECT r.mode FROM objects.prefix_rules r WHERE r.bucket = b.name ORDER BY r.prefix)
FROM objects.buckets b `
	sqlBucket  = bucketColumns + `WHERE b.name = $1`
	sqlBuckets = bucketColumns + `WHERE b.name > $1 ORDER BY b.name LIMIT $2`
)

func (b *Bucket) scan(row pgx.Row) error {
	var mode string
	var count pgtype.Int4
	var age, retention pgtype.Interval
	var prefixes, modes []string
	var depths []int
	if err := row.Scan(&b.Name, &b.Created, &b.Rule.depth, &mode, &count, &age, &retention, &prefixes, &depths, &modes); err != nil {
		return err
	}
	b.Rule.read(mode)
	b.Keep, b.Retained = keepOf(count, age), retentionOf(retention)
	b.Prefixes = make([]PrefixRuleOf, len(prefixes))
	for i, prefix := range prefixes {
		b.Prefixes[i] = PrefixRuleOf{Prefix: prefix, Rule: Rule{depth: depths[i]}}
		b.Prefixes[i].Rule.read(modes[i])
	}
	return nil
}

// Bucket returns a bucket with its settings; [ErrNoBucket] if it does not exist.
func (c *Catalog) Bucket(ctx context.Context, name string) (Bucket, error) {
	var b Bucket
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error { return b.scan(q.QueryRow(ctx, sqlBucket, name)) })
	if err = noRows(err, ErrNoBucket); err != nil {
		return Bucket{}, fmt.Errorf("bucket %q: %w", name, err)
	}
	return b, nil
}

// Covers reports whether every key that begins with the prefix needs the resource.
func (b Bucket) Covers(prefix, resource string) bool {
	rule, longest := b.Rule, -1
	for _, p := range b.Prefixes {
		switch {
		case len(p.Prefix) > len(prefix) && strings.HasPrefix(p.Prefix, prefix):
			return false // some keys have another rule
		case strings.HasPrefix(prefix, p.Prefix) && len(p.Prefix) > longest:
			rule, longest = p.Rule, len(p.Prefix)
		}
	}
	complete := rule.depth >= 0 && strings.Count(prefix, "/") >= rule.depth // the resource's components end with a slash
	return complete && !rule.Unchecked() && rule.Resource(b.Name, prefix) == resource
}

// Buckets lists at most limit buckets after `after`, ordered by name.
func (c *Catalog) Buckets(ctx context.Context, after string, limit int) ([]Bucket, error) {
	var found []Bucket
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		rows, err := q.Query(ctx, sqlBuckets, after, limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (b Bucket, err error) { err = b.scan(row); return b, err })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the buckets: %w", err)
	}
	return found, nil
}

// EnsureBucket creates a bucket, or sets the rule of an existing one; created says which. The error is [ErrRuleInUse]
// if it holds objects that were written under another rule, or a [*fence.InvalidError] for a name that S3 does not
// allow.
func (c *Catalog) EnsureBucket(ctx context.Context, name string, rule Rule) (created bool, err error) {
	if err := CheckBucketName(name); err != nil {
		return false, err
	}
	created, err = c.setBucket(ctx, name, BucketSettings{Rule: &rule})
	if err != nil {
		return false, fmt.Errorf("ensure bucket %q with rule %s: %w", name, rule, err)
	}
	return created, nil
}

// BucketSettings are settings of a bucket that change together; nil: unchanged.
type BucketSettings struct {
	Rule     *Rule // needed for a new bucket
	Keep     *Keep
	Retained *time.Duration
}

// SetBucket sets all settings in one transaction, or none of them. created says whether it created the bucket. The
// errors are those of [Catalog.EnsureBucket], [Catalog.SetKeep] and [Catalog.SetRetention].
func (c *Catalog) SetBucket(ctx context.Context, name string, set BucketSettings) (created bool, err error) {
	if set.Rule != nil {
		err = CheckBucketName(name)
	}
	if set.Keep != nil && err == nil {
		err = set.Keep.validate()
	}
	if set.Retained != nil && err == nil {
		err = checkRetention(*set.Retained)
	}
	if err != nil {
		return false, err
	}
	if created, err = c.setBucket(ctx, name, set); err != nil {
		return false, fmt.Errorf("set bucket %q: %w", name, err)
	}
	return created, nil
}

// CreateBucketIfAbsent creates a bucket with the rule if there is none of that name; an existing one keeps its rule.
// created says which, and current is the rule now in force. The error is a [*fence.InvalidError] for a name that S3
// does not allow.
func (c *Catalog) CreateBucketIfAbsent(ctx context.Context, name string, rule Rule) (created bool, current Rule, err error) {
	if err := CheckBucketName(name); err != nil {
		return false, Rule{}, err
	}
	created, current, err = c.CreateBucket(ctx, name, rule)
	if err != nil {
		return false, Rule{}, fmt.Errorf("create bucket %q with rule %s: %w", name, rule, err)
	}
	return created, current, nil
}

// SetKeep sets what a bucket keeps of older versions. The next sweep removes those that exceed the new setting. The
// error is a [*fence.InvalidError], or [ErrNoBucket].
func (c *Catalog) SetKeep(ctx context.Context, bucket string, k Keep) error {
	if err := k.validate(); err != nil {
		return err
	}
	if _, err := c.setBucket(ctx, bucket, BucketSettings{Keep: &k}); err != nil {
		return fmt.Errorf("set the kept versions of bucket %q to %s: %w", bucket, k, err)
	}
	return nil
}

// SetPrefixRule sets a rule for the keys of a bucket that begin with the prefix; the longest prefix applies. The error
// is [ErrRuleInUse] if objects below it were written under another rule, [ErrNoBucket], or a [*fence.InvalidError].
func (c *Catalog) SetPrefixRule(ctx context.Context, bucket, prefix string, rule Rule) error {
	if prefix == "" {
		return &fence.InvalidError{Field: "prefix", Reason: "is empty; the rule of all keys is the bucket's"}
	}
	if e := CheckKey(prefix); e != nil {
		return &fence.InvalidError{Field: "prefix", Reason: e.Error()}
	}
	if err := c.prefixRule(ctx, bucket, prefix, &rule); err != nil {
		return fmt.Errorf("rule %s of prefix %q in bucket %q: %w", rule, prefix, bucket, err)
	}
	return nil
}

// DropPrefixRule drops the rule of a prefix; the rule of a shorter prefix or of the bucket applies again. Errors are
// those of [Catalog.SetPrefixRule].
func (c *Catalog) DropPrefixRule(ctx context.Context, bucket, prefix string) error {
	if err := c.prefixRule(ctx, bucket, prefix, nil); err != nil {
		return fmt.Errorf("drop the rule of prefix %q in bucket %q: %w", prefix, bucket, err)
	}
	return nil
}

// CheckBucketName returns a [*fence.InvalidError] for a name that S3 does not allow.
func CheckBucketName(name string) error {
	if validBucket(name) {
		return nil
	}
	return &fence.InvalidError{Field: "bucket", Reason: fmt.Sprintf("is %q; S3 wants 3 to 63 lower-case letters, digits, '-' or '.', beginning and ending with a letter or digit", name)}
}

func validBucket(name string) bool {
	if len(name) < 3 || len(name) > 63 {
		return false
	}
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !letter && (c != '-' && c != '.' || i == 0 || i == len(name)-1) {
			return false
		}
	}
	return true
}

package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// Bucket returns a bucket with its settings; [ErrNoBucket] if it does not exist.
func (c *Catalog) Bucket(ctx context.Context, name string) (Bucket, error) {
	var b Bucket
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error { return b.scan(q.QueryRow(ctx, sqlBucket, name)) })
	if err = noRows(err, ErrNoBucket); err != nil {
		return Bucket{}, fmt.Errorf("bucket %q: %w", name, err)
	}
	return b, nil
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

// SetRetention sets how long the objects of a bucket can be neither overwritten nor deleted after they are written; 0:
// not at all. The error is [ErrRetained] if that is shorter than before and the bucket holds objects, [ErrNoBucket], or
// a [*fence.InvalidError].
func (c *Catalog) SetRetention(ctx context.Context, bucket string, d time.Duration) error {
	if err := checkRetention(d); err != nil {
		return err
	}
	if _, err := c.setBucket(ctx, bucket, BucketSettings{Retained: &d}); err != nil {
		return fmt.Errorf("set the write-once retention of bucket %q to %s: %w", bucket, ShowRetention(d), err)
	}
	return nil
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

// DocumentKind names one of a bucket's documents. A bucket has at most one of each kind.
type DocumentKind string

// Kinds of documents.
const (
	DocumentCORS DocumentKind = "cors"
	DocumentTags DocumentKind = "tagging"
)

const (
	sqlSetDocument = "SELECT objects.set_bucket_document($1, $2, $3)"
	sqlDocument    = "SELECT d.document FROM objects.buckets b LEFT JOIN objects.bucket_documents d ON d.bucket = b.name AND d.kind = $2 WHERE b.name = $1"
)

// Document returns a document; "" if there is none. The error is [ErrNoBucket] if the bucket does not exist.
func (c *Catalog) Document(ctx context.Context, bucket string, kind DocumentKind) (string, error) {
	var text pgtype.Text
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlDocument, bucket, string(kind)).Scan(&text)
	})
	return text.String, noRows(err, ErrNoBucket)
}

// SetDocument stores a document; "" removes it.
func (c *Catalog) SetDocument(ctx context.Context, bucket string, kind DocumentKind, text string) error {
	return c.db.Settle(ctx, Exec(sqlSetDocument, bucket, string(kind), pgtype.Text{String: text, Valid: text != ""}))
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

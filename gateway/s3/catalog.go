package s3

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlAudit = `SELECT v.id, v.created_at, v.deletion, v.size, v.etag, v.resource, v.token, v.holder, v.kept_order IS NOT NULL,
	EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = v.bucket AND p.key = v.key AND p.version = v.id),
	v.origin, v.removed_at, coalesce(v.removed_with, 0), coalesce(v.removed_by, '')
	FROM objects.versions v WHERE v.bucket = $1 AND v.key = $2 ORDER BY v.created_at DESC, v.id DESC LIMIT $3`

	catalogTimeout = 30 * time.Second // of one statement
)

// Catalog is the buckets, objects and versions as PostgreSQL records them, for
// operators: it needs no S3 port, and it reads no bytes. Safe for concurrent use.
type Catalog struct{ db database }

// NewCatalog reads through a pool that is logged in as a member of fence_gateway.
func NewCatalog(pool *pgxpool.Pool) *Catalog {
	return &Catalog{db: newDatabase(pool, catalogTimeout)}
}

// Object is the current version of a key.
type Object struct {
	Key      string
	Size     int64 // bytes
	ETag     string
	Modified time.Time
}

// Version is a version of a key that is current or kept.
type Version struct {
	Object

	ID       string
	Latest   bool // what a read without a version id finds
	Deletion bool
	Resource string
	Token    fence.Token // with which it was written; 0: the rule asked for none
	Holder   string      // who held the lease then
}

// Record is what is known of a write, also of one whose bytes are gone.
type Record struct {
	Version

	Kept        bool   // it is not the latest, but still there
	Origin      string // of a restored version: the version whose bytes it has
	RemovedAt   time.Time
	RemovedWith fence.Token
	RemovedBy   string
}

// Objects lists at most limit objects whose keys begin with the prefix and come
// after the given one. The error is [ErrNoBucket] where there is none.
func (c *Catalog) Objects(ctx context.Context, bucket, prefix, after string, limit int) ([]Object, error) {
	l, err := c.db.list(ctx, bucket, prefix, "", after, limit)
	if err != nil {
		return nil, fmt.Errorf("list bucket %q: %w", bucket, err)
	}
	all := make([]Object, len(l.objects))
	for i, o := range l.objects {
		all[i] = Object{Key: *o.Key, Size: *o.Size, ETag: *o.ETag, Modified: *o.LastModified}
	}
	return all, nil
}

// Versions lists at most limit versions, of one key the newest first, after the
// given key and, where it is not "", version.
func (c *Catalog) Versions(ctx context.Context, bucket, prefix, afterKey, afterVersion string, limit int) ([]Version, error) {
	_, err := c.db.rule(ctx, bucket)
	var found []listed
	if err == nil {
		found, err = c.db.versions(ctx, page{bucket: bucket, prefix: prefix, afterKey: afterKey, afterVersion: afterVersion, limit: limit})
	}
	if err != nil {
		return nil, fmt.Errorf("list the versions in bucket %q: %w", bucket, err)
	}
	all := make([]Version, 0, len(found))
	for _, l := range found[:min(limit, len(found))] {
		all = append(all, Version{
			Object: Object{Key: l.entry, Size: l.size, ETag: l.etag, Modified: l.modified}, ID: blob.ID(l.id).String(),
			Latest: l.latest, Deletion: l.deletion, Resource: l.resource, Token: fence.Token(l.token), Holder: l.holder,
		})
	}
	return all, nil
}

// Audit tells which token wrote each version of a key, the newest first, at most
// limit; also of versions that are gone.
func (c *Catalog) Audit(ctx context.Context, bucket, key string, limit int) ([]Record, error) {
	var all []Record
	err := c.db.once(ctx, func(ctx context.Context, q querier) error {
		all = nil
		rows, err := q.Query(ctx, sqlAudit, bucket, key, limit)
		if err != nil {
			return err
		}
		var r Record
		var id [16]byte
		var origin *[16]byte
		var removed *time.Time
		_, err = pgx.ForEachRow(rows, []any{
			&id, &r.Modified, &r.Deletion, &r.Size, &r.ETag, &r.Resource, &r.Token, &r.Holder, &r.Kept, &r.Latest, &origin, &removed, &r.RemovedWith, &r.RemovedBy,
		}, func() error {
			r.Key, r.ID, r.Origin, r.RemovedAt = key, blob.ID(id).String(), "", time.Time{}
			if origin != nil {
				r.Origin = blob.ID(*origin).String()
			}
			if removed != nil {
				r.RemovedAt = *removed
			}
			all = append(all, r)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("audit %q in bucket %q: %w", key, bucket, err)
	}
	return all, nil
}

// Restore makes an older version of a key current again, under the grant of the
// resource that the key needs, and returns the new version's id. No bytes move.
// The error is [ErrNoVersion], [ErrNoBucket], or a refusal by the fence.
func (c *Catalog) Restore(ctx context.Context, bucket, key, version string, g fence.Grant) (string, error) {
	source, err := blob.ParseID(version)
	if err != nil {
		return "", &fence.InvalidError{Field: "version", Reason: "is not 32 lower-case hexadecimal digits"}
	}
	if err := g.Validate(); err != nil {
		return "", err
	}
	if g.Seal.IsZero() {
		return "", &fence.InvalidError{Field: "grant", Reason: "has no seal; it reads TOKEN.SEAL"}
	}
	var v struct{ id [16]byte }
	args := []any{uuid(blob.NewID()), bucket, key, uuid(source), g.Resource, int64(g.Token), g.Seal.Hash(), nil, nil, false}
	err = c.db.settle(ctx, func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, "SELECT id FROM objects.restore_version($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)", args...).Scan(&v.id)
	})
	if err != nil {
		return "", notRestored(err, version, bucket, key)
	}
	return blob.ID(v.id).String(), nil
}

// notRestored says why a version can't be made current.
func notRestored(err error, version, bucket, key string) error {
	if errIs(err, s3err.ErrNoSuchVersion) {
		return fmt.Errorf("%w: %s of %q in %q", ErrNoVersion, version, key, bucket)
	}
	return err
}

// ErrNoVersion: the key has no such version, any more.
var ErrNoVersion = errors.New("no such version")

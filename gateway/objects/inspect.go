package objects

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

// What operators see of objects, outside of S3.

const (
	sqlAudit = `SELECT v.id, v.created_at, v.deletion, v.size, v.etag, v.resource, v.token, v.holder, v.kept_order IS NOT NULL,
	EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = v.bucket AND p.key = v.key AND p.version = v.id),
	v.origin, v.removed_at, coalesce(v.removed_with, 0), coalesce(v.removed_by, '')
	FROM objects.versions v WHERE v.bucket = $1 AND v.key = $2 ORDER BY v.created_at DESC, v.id DESC LIMIT $3`
)

// Record describes a write, even if its bytes are gone.
type Record struct {
	Version

	Kept        bool   // not the latest, but still kept
	Origin      string // for a restored version: the version with the same bytes
	RemovedAt   time.Time
	RemovedWith fence.Token
	RemovedBy   string
}

// Objects lists at most limit objects whose keys begin with prefix, after the given key. The error is [ErrNoBucket] if
// the bucket does not exist.
func (c *Catalog) Objects(ctx context.Context, bucket, prefix, after string, limit int) ([]Object, error) {
	l, err := c.List(ctx, bucket, prefix, "", after, limit)
	if err != nil {
		return nil, fmt.Errorf("list bucket %q: %w", bucket, err)
	}
	for i := range l.Objects {
		l.Objects[i].ETag = `"` + l.Objects[i].ETag + `"`
	}
	return l.Objects, nil
}

// Versions lists at most limit versions, those of one key newest first, after the given key and, unless it is "",
// version.
func (c *Catalog) Versions(ctx context.Context, bucket, prefix, afterKey, afterVersion string, limit int) ([]Version, error) {
	_, err := c.Rule(ctx, bucket)
	var found []VersionEntry
	if err == nil {
		found, err = c.ListVersions(ctx, VersionPage{Bucket: bucket, Prefix: prefix, AfterKey: afterKey, AfterVersion: afterVersion, Limit: limit})
	}
	if err != nil {
		return nil, fmt.Errorf("list the versions in bucket %q: %w", bucket, err)
	}
	all := make([]Version, 0, len(found))
	for _, entry := range found[:min(limit, len(found))] {
		all = append(all, entry.Version)
	}
	return all, nil
}

// Audit returns which token wrote each version of a key, newest first, at most limit, including versions that are gone.
func (c *Catalog) Audit(ctx context.Context, bucket, key string, limit int) ([]Record, error) {
	var all []Record
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error {
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

// Restore makes an older version of a key current again, under a grant of the resource that the key needs, and returns
// the new version's id. It copies no bytes. The error is [ErrNoVersion], [ErrNoBucket], or a refusal by the fence.
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
	args := []any{UUID(blob.NewID()), bucket, key, UUID(source), g.Resource, int64(g.Token), g.Seal.Hash(), nil, nil, false}
	err = c.db.underGrant().Settle(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, "SELECT id FROM objects.restore_version($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)", args...).Scan(&v.id)
	})
	if err != nil {
		return "", notRestored(err, version, bucket, key)
	}
	return blob.ID(v.id).String(), nil
}

// notRestored says why a version cannot become current.
func notRestored(err error, version, bucket, key string) error {
	if errors.Is(err, ErrNoVersion) {
		return fmt.Errorf("%w: %s of %q in %q", ErrNoVersion, version, key, bucket)
	}
	return err
}

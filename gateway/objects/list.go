package objects

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlList = `SELECT entry, is_prefix, coalesce(size, 0), coalesce(etag, ''), coalesce(modified_at, 'epoch')
	FROM objects.list($1, $2, $3, $4, $5)`
	sqlListVersions = `SELECT entry, is_prefix, coalesce(id, '00000000-0000-0000-0000-000000000000'), coalesce(latest, false), coalesce(deletion, false),
	coalesce(size, 0), coalesce(etag, ''), coalesce(modified_at, 'epoch'), coalesce(resource, ''), coalesce(token, 0), coalesce(holder, '')
	FROM objects.list_versions($1, $2, $3, $4, $5, $6)`
	sqlUploads = `SELECT entry, is_prefix, coalesce(id, '00000000-0000-0000-0000-000000000000'), coalesce(created_at, 'epoch')
	FROM objects.list_uploads($1, $2, $3, $4, $5, $6)`
)

// Listing is a page of a bucket's keys and common prefixes.
type Listing struct {
	Objects  []Object
	Prefixes []string
	Last     string // the entry after which the next page begins; "" on the last page
}

// List returns one page: at most limit entries after `after`.
func (c *Catalog) List(ctx context.Context, bucket, prefix, delimiter, after string, limit int) (Listing, error) {
	var l Listing
	if _, err := c.Rule(ctx, bucket); err != nil || limit == 0 {
		return l, err
	}
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		l = Listing{}
		rows, err := q.Query(ctx, sqlList, bucket, prefix, delimiter, after, limit+1)
		if err != nil {
			return err
		}
		var o Object
		var isPrefix bool
		count, previous := 0, ""
		_, err = pgx.ForEachRow(rows, []any{&o.Key, &isPrefix, &o.Size, &o.ETag, &o.Modified}, func() error {
			if count == limit {
				l.Last = previous
				return nil
			}
			count++
			previous = o.Key
			if isPrefix {
				l.Prefixes = append(l.Prefixes, o.Key)
				return nil
			}
			l.Objects = append(l.Objects, o)
			return nil
		})
		return err
	})
	return l, err
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

// VersionEntry is an entry of a list of versions.
type VersionEntry struct {
	Version

	IsPrefix bool // Key is a common prefix, and the other fields are empty
}

// VersionPage describes a page of a list of versions.
type VersionPage struct {
	Bucket, Prefix, Delimiter string
	AfterKey, AfterVersion    string // the entry before the page; a key alone: all its versions
	Limit                     int
}

// ListVersions returns one page, plus one entry if there are more.
func (c *Catalog) ListVersions(ctx context.Context, p VersionPage) ([]VersionEntry, error) {
	after, err := parseVersion(p.AfterVersion)
	if err != nil {
		return nil, err
	}
	var all []VersionEntry
	err = c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		all = nil
		rows, err := q.Query(ctx, sqlListVersions, p.Bucket, p.Prefix, p.Delimiter, p.AfterKey, after, p.Limit+1)
		if err != nil {
			return err
		}
		var l VersionEntry
		var id [16]byte
		_, err = pgx.ForEachRow(rows, []any{
			&l.Key, &l.IsPrefix, &id, &l.Latest, &l.Deletion, &l.Size, &l.ETag, &l.Modified, &l.Resource, &l.Token, &l.Holder,
		}, func() error {
			l.ID = blob.ID(id).String()
			all = append(all, l)
			return nil
		})
		return err
	})
	return all, err
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

// UploadEntry is an upload in progress, or a common prefix of several.
type UploadEntry struct {
	Key      string
	IsPrefix bool
	ID       blob.ID
	Begun    time.Time
}

// AfterAll sorts after every upload of a key.
var AfterAll = blob.ID{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// ListUploads returns one page of the uploads in progress after a key and, of that key, an upload; plus one entry if
// there are more.
func (c *Catalog) ListUploads(ctx context.Context, bucket, prefix, delimiter, afterKey string, after blob.ID, limit int) ([]UploadEntry, error) {
	var all []UploadEntry
	err := c.db.Once(ctx, func(ctx context.Context, q Querier) error {
		all = nil
		rows, err := q.Query(ctx, sqlUploads, bucket, prefix, delimiter, afterKey, UUID(after), limit+1)
		if err != nil {
			return err
		}
		var u UploadEntry
		_, err = pgx.ForEachRow(rows, []any{&u.Key, &u.IsPrefix, (*[16]byte)(&u.ID), &u.Begun}, func() error {
			all = append(all, u)
			return nil
		})
		return err
	})
	return all, err
}

const sqlStages = `SELECT s.id, s.bucket, s.key, (SELECT sum(n)::bigint FROM unnest(s.blob_sizes) n), s.etag, s.resource, s.token, s.created_at
	FROM objects.stages s WHERE s.bucket = $1 AND starts_with(s.key, $2) AND s.id > $3
	AND NOT EXISTS (SELECT FROM objects.blobs b WHERE b.id = ANY (s.blobs) AND b.state <> 'pending') ORDER BY s.id LIMIT $4`

// Staged is an upload that waits for its publication.
type Staged struct {
	Version // what it will become; Modified is when it was staged

	Bucket string
}

// Staged lists at most limit staged uploads of a bucket whose keys begin with the prefix, ordered by their staging,
// after the given id.
func (c *Catalog) Staged(ctx context.Context, bucket, prefix, after string, limit int) ([]Staged, error) {
	var above blob.ID
	if after != "" {
		var err error
		if above, err = blob.ParseID(after); err != nil {
			return nil, fmt.Errorf("list staged uploads after %q: %w", after, err)
		}
	}
	_, err := c.Rule(ctx, bucket)
	var all []Staged
	if err == nil {
		err = c.db.Once(ctx, func(ctx context.Context, q Querier) error {
			all = nil
			rows, err := q.Query(ctx, sqlStages, bucket, prefix, UUID(above), limit)
			if err != nil {
				return err
			}
			var s Staged
			var id [16]byte
			_, err = pgx.ForEachRow(rows, []any{&id, &s.Bucket, &s.Key, &s.Size, &s.ETag, &s.Resource, &s.Token, &s.Modified}, func() error {
				s.ID = blob.ID(id).String()
				all = append(all, s)
				return nil
			})
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list staged uploads of bucket %q: %w", bucket, err)
	}
	return all, nil
}

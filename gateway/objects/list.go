package objects

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

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

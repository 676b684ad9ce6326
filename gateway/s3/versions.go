package s3

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

const (
	sqlRestore      = "SELECT " + versionColumns + " FROM objects.restore_version($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
	sqlListVersions = `SELECT entry, is_prefix, coalesce(id, '00000000-0000-0000-0000-000000000000'), coalesce(latest, false), coalesce(deletion, false),
	coalesce(size, 0), coalesce(etag, ''), coalesce(modified_at, 'epoch'), coalesce(resource, ''), coalesce(token, 0), coalesce(holder, '')
	FROM objects.list_versions($1, $2, $3, $4, $5, $6)`
)

// restore makes an older version of a key current again, by a new version that
// lists the same blobs. They are looked for first: after a database or a store was
// set back, PostgreSQL may list what is not there.
func (b *backend) restore(r request, t target, source version) (version, error) {
	if r.stages() {
		return version{}, s3error.NotThere
	}
	if err := b.stored(source); err != nil {
		if _, gone := b.find(t.bucket, t.key, blob.ID(source.ID).String()); gone != nil {
			err = gone // let go of and swept since it was found
		}
		return version{}, err
	}
	var v version
	args := []any{
		uuid(blob.NewID()), t.bucket, t.key, uuid(source.ID), r.grant.resource, int64(r.grant.token), r.grant.sealHash,
		nullable(r.invocation), t.ifMatch, t.ifNoneMatch,
	}
	err := b.db.settle(b.base, func(ctx context.Context, q querier) error { return v.scan(q.QueryRow(ctx, sqlRestore, args...)) })
	return v, err
}

// stored sees that the store has a version's blobs, in their sizes; several at a
// time, for there may be many.
func (b *backend) stored(v version) error {
	errs := make([]error, len(v.Blobs))
	free := make(chan struct{}, sweepWorkers)
	var wg sync.WaitGroup
	for i, id := range v.Blobs {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			size, err := b.cfg.Store.Size(b.base, id)
			switch {
			case errors.Is(err, blob.ErrNotFound):
				errs[i] = fmt.Errorf("the blob store lacks a blob of version %x: %w", v.ID, err)
			case err != nil:
				errs[i] = fmt.Errorf("%w: %w", errStoreFailed, err)
			case size != v.BlobSizes[i]:
				errs[i] = fmt.Errorf("blob %s of version %x: %w: the store has %d bytes of %d", blob.ID(id), v.ID, blob.ErrSize, size, v.BlobSizes[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// listed is an entry of a list of versions.
type listed struct {
	entry            string
	isPrefix         bool
	id               [16]byte
	latest, deletion bool
	size             int64
	etag             string
	modified         time.Time
	resource         string
	token            int64
	holder           string
}

// page asks for entries of a list of versions.
type page struct {
	bucket, prefix, delimiter string
	afterKey, afterVersion    string // the entry before the page; a key alone: all its versions
	limit                     int
}

// versions reads one page, and one entry more where there is one.
func (d database) versions(ctx context.Context, p page) ([]listed, error) {
	after, err := versionOf(p.afterVersion)
	if err != nil {
		return nil, err
	}
	var all []listed
	err = d.once(ctx, func(ctx context.Context, q querier) error {
		all = nil
		rows, err := q.Query(ctx, sqlListVersions, p.bucket, p.prefix, p.delimiter, p.afterKey, after, p.limit+1)
		if err != nil {
			return err
		}
		var l listed
		_, err = pgx.ForEachRow(rows, []any{
			&l.entry, &l.isPrefix, &l.id, &l.latest, &l.deletion, &l.size, &l.etag, &l.modified, &l.resource, &l.token, &l.holder,
		}, func() error {
			all = append(all, l)
			return nil
		})
		return err
	})
	return all, err
}

// ListObjectVersions implements the front's Backend.
func (b *backend) ListObjectVersions(ctx context.Context, in *s3.ListObjectVersionsInput) (s3response.ListVersionsResult, error) {
	r := b.requestOf(ctx)
	result, err := b.listVersions(r, in)
	if err != nil {
		return result, b.fail(r, *in.Bucket, "ListObjectVersions", err)
	}
	return result, nil
}

func (b *backend) listVersions(r request, in *s3.ListObjectVersionsInput) (s3response.ListVersionsResult, error) {
	limit := min(int(*in.MaxKeys), maxList)
	truncated := false
	result := s3response.ListVersionsResult{
		Name: in.Bucket, Prefix: in.Prefix, Delimiter: given(in.Delimiter), KeyMarker: in.KeyMarker, VersionIdMarker: in.VersionIdMarker,
		MaxKeys: in.MaxKeys, IsTruncated: &truncated,
	}
	encoding, err := r.encoding()
	if err != nil {
		return result, err
	}
	name := func(s string) *string { return &s }
	if encoding != "" {
		result.EncodingType, result.Prefix, result.Delimiter, result.KeyMarker = encoding, encoded(in.Prefix), encoded(given(in.Delimiter)), encoded(in.KeyMarker)
		name = func(s string) *string { return encoded(&s) }
	}
	if *in.VersionIdMarker != "" && *in.KeyMarker == "" {
		return result, s3error.Error{Code: "InvalidArgument", Status: 400, Message: "A version-id marker cannot be specified without a key marker."}
	}
	keep, err := b.db.keep(b.base, *in.Bucket)
	if err != nil || limit == 0 {
		return result, err
	}
	found, err := b.db.versions(b.base, page{
		bucket: *in.Bucket, prefix: *in.Prefix, delimiter: *in.Delimiter, afterKey: *in.KeyMarker, afterVersion: *in.VersionIdMarker, limit: limit,
	})
	if err != nil {
		return result, err
	}
	if truncated = len(found) > limit; truncated {
		found = found[:limit]
		last := found[limit-1]
		if result.NextKeyMarker = name(last.entry); !last.isPrefix {
			result.NextVersionIdMarker = last.shownID(keep)
		}
	}
	owner := b.rootOwner()
	for _, l := range found {
		switch id, etag := l.shownID(keep), quoted(l.etag); {
		case l.isPrefix:
			result.CommonPrefixes = append(result.CommonPrefixes, types.CommonPrefix{Prefix: name(l.entry)})
		case l.deletion:
			result.DeleteMarkers = append(result.DeleteMarkers, types.DeleteMarkerEntry{
				Key: name(l.entry), VersionId: id, IsLatest: &l.latest, LastModified: &l.modified, Owner: owner,
			})
		default:
			result.Versions = append(result.Versions, s3response.ObjectVersion{
				Key: name(l.entry), VersionId: id, IsLatest: &l.latest, LastModified: &l.modified, Owner: owner,
				ETag: &etag, Size: &l.size, StorageClass: types.ObjectVersionStorageClassStandard,
			})
		}
	}
	return result, nil
}

// shownID is the id that clients see.
func (l listed) shownID(k Keep) *string {
	id := blob.ID(l.id).String()
	if k == (Keep{}) && l.latest {
		id = nullVersion
	}
	return &id
}

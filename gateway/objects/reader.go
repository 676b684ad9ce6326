package objects

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlFind = "SELECT v.id IS NOT NULL, coalesce(v.deletion, false), " + foundColumns + `
	FROM objects.buckets b
	LEFT JOIN objects.versions v ON v.id = $3 AND v.bucket = b.name AND v.key = $2 AND (v.kept_order IS NOT NULL
		OR EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = b.name AND p.key = $2 AND p.version = v.id))
	WHERE b.name = $1`
	// The deletion that hides a key, if any.
	sqlHidden = `SELECT v.id, v.deletion FROM objects.versions v
	WHERE v.bucket = $1 AND v.key = $2 AND v.kept_order IS NOT NULL ORDER BY v.kept_order DESC LIMIT 1`

	sqlPartChecksums = "SELECT coalesce(ARRAY(SELECT jsonb_array_elements_text(attributes -> 'part_checksums')), '{}') FROM objects.versions WHERE id = $1"
)

// Reader finds versions and reads their bytes. It needs no grant. Safe for concurrent use. It looks up the pointer
// before it reads the first byte, so no transaction waits for a slow reader.
type Reader struct {
	db      Database
	store   blob.Store
	lookups *lookups
	memory  memory // for write-once buckets
}

// NewReader reads versions from a database, and their bytes from a store.
func NewReader(db Database, store blob.Store, log *slog.Logger) *Reader {
	return &Reader{db: db, store: store, lookups: newLookups(db, log)}
}

// Find returns the version that a read asks for; versionID "" is the current one. The error is [ErrNoBucket],
// [ErrNoKey], [ErrVersionID], a [*NoVersionError] or a [*MarkerError].
func (r *Reader) Find(ctx context.Context, bucket, key, versionID string) (Stored, error) {
	wanted, err := parseVersion(versionID)
	if err != nil {
		return Stored{}, err
	}
	var v Stored
	var found, deletion bool
	if wanted.Valid {
		v, found, deletion, err = r.byID(ctx, bucket, key, wanted)
	} else {
		v, found, err = r.current(ctx, bucket, key)
	}
	switch err = noRows(err, ErrNoBucket); {
	case err != nil:
		return v, err
	case deletion:
		return v, &MarkerError{ID: v.ID, Named: true}
	case !found && versionID != "", versionID == NullVersion && v.Kept: // such a bucket has an id for each version
		return v, &NoVersionError{Key: strings.Clone(key), ID: strings.Clone(versionID)}
	case !found && v.Kept:
		return v, r.hidden(ctx, bucket, key)
	case !found:
		return v, ErrNoKey
	}
	return v, nil
}

// byID returns the version of a key with this id, and whether it exists.
func (r *Reader) byID(ctx context.Context, bucket, key string, id pgtype.UUID) (v Stored, found, deletion bool, err error) {
	err = r.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return v.scan(rowTail{q.QueryRow(ctx, sqlFind, bucket, key, id), []any{&found, &deletion}})
	})
	return v, found, deletion, err
}

// current returns a key's current version, and whether it exists.
func (r *Reader) current(ctx context.Context, bucket, key string) (v Stored, found bool, err error) {
	if v, found = r.memory.recall(bucket, key); found {
		return v, true, nil
	}
	began := time.Now()
	c, err := r.lookups.find(ctx, bucket, key)
	switch {
	case err == nil && !c.bucket:
		return Stored{}, false, ErrNoBucket
	case err == nil:
		r.memory.remember(bucket, key, c, began)
		return c.Stored, c.key, nil
	}
	return Stored{}, false, err
}

// Forget drops a key's version from the cache, so that the next read looks it up.
func (r *Reader) Forget(bucket, key string) { r.memory.forget(bucket, key) }

// Saw reports which PostgreSQL is in use, as fence.identity names it; "" for one that may have lost acknowledged
// writes. The reader drops its cache of another one.
func (r *Reader) Saw(identity string) { r.memory.saw(identity) }

// hidden returns the error for a missing key, which names the deletion marker that hides it.
func (r *Reader) hidden(ctx context.Context, bucket, key string) error {
	var id [16]byte
	var deletion bool
	err := r.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlHidden, bucket, key).Scan(&id, &deletion)
	})
	switch err = noRows(err, nil); {
	case err != nil:
		return err
	case deletion:
		return &MarkerError{ID: id}
	}
	return ErrNoKey
}

// PartChecksums returns the checksums of a version's parts; none if not recorded.
func (r *Reader) PartChecksums(ctx context.Context, v Stored) ([]string, error) {
	var sums []string
	err := r.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlPartChecksums, UUID(v.ID)).Scan(&sums)
	})
	if err != nil || len(sums) != len(v.Blobs) {
		return nil, noRows(err, nil)
	}
	return sums, nil
}

// Open opens a version's bytes for reading under ctx. It opens the first blob at once, so that a missing one is found
// before the response begins, and the others one after the other.
func (r *Reader) Open(ctx context.Context, v Stored, offset, length int64) (io.ReadCloser, error) {
	s := &sequence{store: r.store, base: ctx}
	for i, size := range v.BlobSizes {
		if offset >= size || length == 0 {
			offset = max(offset-size, 0)
			continue
		}
		n := min(size-offset, length)
		s.rest = append(s.rest, piece{id: v.Blobs[i], offset: offset, length: n})
		offset, length = 0, length-n
	}
	if from, can := s.store.(wholeReader); can && len(s.rest) == 1 && s.rest[0].length <= smallBody {
		return load(ctx, from, s.rest[0])
	}
	if err := s.next(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return s, nil
}

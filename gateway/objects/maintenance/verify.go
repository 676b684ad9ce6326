package maintenance

import (
	"context"
	"crypto/md5" //nolint:gosec // S3 defines the ETag as the MD5 of the bytes
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

const (
	sqlChecksum = "coalesce(v.attributes->>'checksum_algorithm', ''), coalesce(v.attributes->>'checksum', '')"

	sqlCurrent = `SELECT v.bucket, v.key, v.id, v.blobs, v.blob_sizes, v.etag, 9223372036854775807 AS kept_order, ` + sqlChecksum + `
	FROM objects.pointers p JOIN objects.versions v ON v.id = p.version
	WHERE ($3 = '' OR p.bucket = $3) AND ($4 = '' OR starts_with(p.key, $4)) AND `
	sqlByKey = ` ORDER BY p.bucket, p.key LIMIT $5`
	// A page of current versions, ordered by key.
	sqlVerifyCurrent = sqlCurrent + `(p.bucket, p.key) > ($1, $2)` + sqlByKey
	// The same where the last key's kept versions are not all read ($6 > 0): its current version comes again if it is
	// not the one that was read ($7). Else a kept version that becomes current between two pages is in neither.
	sqlVerifyCurrentAgain = sqlCurrent + `(p.bucket, p.key) >= ($1, $2) AND NOT (p.bucket = $1 AND p.key = $2 AND ($6 = 0 OR v.id = $7))` + sqlByKey
	sqlVerifyKept         = `SELECT v.bucket, v.key, v.id, v.blobs, v.blob_sizes, v.etag, v.kept_order, ` + sqlChecksum + `
	FROM objects.versions v
	WHERE (v.bucket, v.key) >= ($1, $2) AND NOT (v.bucket = $1 AND v.key = $2 AND v.kept_order >= $6)
	AND v.kept_order IS NOT NULL AND NOT v.deletion AND ($3 = '' OR v.bucket = $3) AND ($4 = '' OR starts_with(v.key, $4))
	ORDER BY v.bucket, v.key, v.kept_order DESC LIMIT $5`
	// A page of both, in one statement: a version that stops being current is not missed. Of each key the current
	// version comes first, then the kept ones, the newest first.
	sqlVerifyAll  = "(" + sqlVerifyCurrentAgain + ") UNION ALL (" + sqlVerifyKept + ") ORDER BY bucket, key, kept_order DESC LIMIT $5"
	sqlStillThere = `SELECT EXISTS (SELECT FROM objects.pointers p WHERE p.bucket = $1 AND p.key = $2 AND p.version = $3)
	OR EXISTS (SELECT FROM objects.versions v WHERE v.id = $3 AND v.kept_order IS NOT NULL)`

	verifyPage     = 500
	verifyPatience = 10 // consecutive unreadable blobs after which the store counts as unavailable
)

// Verify says which versions are read again and compared with their records in PostgreSQL.
type Verify struct {
	Bucket, Prefix string  // which keys to verify; "": all
	After          string  // begin after this key, see [Verified]; needs Bucket
	Kept           bool    // also older versions that are kept
	Sample         float64 // the share of versions to read, from 0 to 1. Default 1
	Rate           int64   // bytes per second. Default 0: no limit

	Progress func(Verified) // called after each version
}

// Verified is the progress of a verification.
type Verified struct {
	Versions, Bytes int64
	Bad             int64
	Bucket, Key     string // the last key of which every version that was asked for has been examined
}

// Problems of a version's bytes.
const (
	BlobMissing    = "missing"    // the store has no such blob
	BlobSize       = "size"       // its size differs
	BlobContent    = "content"    // its bytes differ: their MD5 or checksum is not the recorded one
	BlobUnreadable = "unreadable" // the store failed
)

// Finding is a version whose bytes differ from what was written.
type Finding struct {
	Bucket, Key, Version string
	Blob                 string // "": the whole version
	Problem              string
	Detail               string
}

// Verify reads the bytes of versions again and compares them with the sizes, the MD5 and the checksum recorded when
// they were written. It passes findings to report; the error says only why it stopped. A version that was overwritten
// and swept in the meantime is no finding.
func (k *Keeper) Verify(ctx context.Context, o Verify, report func(Finding)) (Verified, error) {
	if o.Bucket != "" {
		if _, err := objects.NewCatalog(k.db).Rule(ctx, o.Bucket); err != nil {
			return Verified{}, fmt.Errorf("verify bucket %q: %w", o.Bucket, err)
		}
	}
	v := &verifier{Verify: o, db: k.db, store: k.store, report: report, begun: time.Now(), buffer: make([]byte, 128<<10)}
	err := v.pages(ctx)
	return v.done, err
}

type verifier struct {
	Verify

	db     objects.Database
	store  blob.Store
	report func(Finding)
	done   Verified
	begun  time.Time
	buffer []byte
	failed int // consecutive

	last    recorded // the version that was read last
	current [16]byte // the current version that was read last
}

// recorded is a version as PostgreSQL records it.
type recorded struct {
	bucket, key string
	id          [16]byte
	blobs       [][16]byte
	sizes       []int64
	etag        string
	order       int64 // of a kept version; the current one has math.MaxInt64

	algorithm, checksum string // "": none
}

// pages reads all versions, a page at a time.
func (v *verifier) pages(ctx context.Context) error {
	v.last = recorded{bucket: v.Bucket, key: v.After}
	for {
		page, err := v.page(ctx)
		if err != nil {
			return fmt.Errorf("verify: %w", err)
		}
		for _, r := range page {
			v.comesTo(r)
			if v.Sample == 0 || rand.Float64() < v.Sample {
				if err := v.version(ctx, r); err != nil {
					return err
				}
			}
			if !v.Kept {
				v.passed(r)
			}
			if v.Progress != nil {
				v.Progress(v.done)
			}
		}
		if len(page) < verifyPage {
			v.passed(v.last)
			return nil
		}
	}
}

// comesTo notes the version that is read next.
func (v *verifier) comesTo(r recorded) {
	if r.bucket != v.last.bucket || r.key != v.last.key {
		v.passed(v.last)
	}
	if r.order == math.MaxInt64 {
		v.current = r.id
	}
	v.last = r
}

// passed notes that every version of a key has been examined: a later run may begin after it.
func (v *verifier) passed(last recorded) { v.done.Bucket, v.done.Key = last.bucket, last.key }

// page lists the versions after the last one.
func (v *verifier) page(ctx context.Context) (page []recorded, err error) {
	sql, args := sqlVerifyCurrent, []any{v.last.bucket, v.last.key, v.Bucket, v.Prefix, verifyPage}
	if v.Kept {
		sql, args = sqlVerifyAll, append(args, v.last.order, objects.UUID(v.current))
	}
	err = v.db.Once(ctx, func(ctx context.Context, q objects.Querier) error {
		rows, err := q.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r recorded, err error) {
			return r, row.Scan(&r.bucket, &r.key, &r.id, &r.blobs, &r.sizes, &r.etag, &r.order, &r.algorithm, &r.checksum)
		})
		return err
	})
	return page, err
}

// version reads the bytes of one version.
func (v *verifier) version(ctx context.Context, r recorded) error {
	v.done.Versions++
	parts := make([][]byte, len(r.blobs))
	checksum := newChecksumCheck(r.algorithm, r.checksum)
	for i, id := range r.blobs {
		sum, problem, err := v.sum(ctx, id, r.sizes[i], checksum)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if problem != "" {
			return v.bad(ctx, r, blob.ID(id).String(), problem, err)
		}
		parts[i] = sum
		checksum.endBlob()
	}
	v.failed = 0
	got := etagOf(parts)
	if !strings.Contains(r.etag, "-") && len(parts) == 1 { // not uploaded in parts
		got = hex.EncodeToString(parts[0])
	}
	if got != r.etag {
		return v.bad(ctx, r, "", BlobContent, fmt.Errorf("the stored bytes have the ETag %s, but %s is recorded", got, r.etag))
	}
	if err := checksum.check(); err != nil {
		return v.bad(ctx, r, "", BlobContent, err)
	}
	return nil
}

// etagOf returns the ETag of an object whose parts have these digests.
func etagOf(sums [][]byte) string {
	all := md5.New() //nolint:gosec // see the import
	for _, sum := range sums {
		all.Write(sum)
	}
	return hex.EncodeToString(all.Sum(nil)) + "-" + strconv.Itoa(len(sums))
}

// sum returns the MD5 of a blob's bytes, and writes them to checksum.
func (v *verifier) sum(ctx context.Context, id blob.ID, want int64, checksum io.Writer) (sum []byte, problem string, err error) {
	size, err := v.store.Size(ctx, id)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return nil, BlobMissing, err
	case err != nil:
		return nil, BlobUnreadable, err
	case size != want:
		return nil, BlobSize, fmt.Errorf("the store has %d bytes, but %d are recorded", size, want)
	}
	r, err := v.store.Open(ctx, id, 0, want)
	if err != nil {
		return nil, BlobUnreadable, err
	}
	defer func() { _ = r.Close() }()
	digest := md5.New() //nolint:gosec // see the import
	var count int64
	for {
		n, err := r.Read(v.buffer)
		digest.Write(v.buffer[:n])
		_, _ = checksum.Write(v.buffer[:n]) // never fails
		count += int64(n)
		v.done.Bytes += int64(n)
		if err := v.slow(ctx); err != nil {
			return nil, BlobUnreadable, err
		}
		switch {
		case err == nil:
		case !errors.Is(err, io.EOF):
			return nil, BlobUnreadable, err
		case count != want:
			return nil, BlobUnreadable, io.ErrUnexpectedEOF
		default:
			return digest.Sum(nil), "", nil
		}
	}
}

// slow waits until the bytes read are within the rate.
func (v *verifier) slow(ctx context.Context) error {
	if v.Rate <= 0 {
		return ctx.Err()
	}
	due := v.begun.Add(time.Duration(float64(v.done.Bytes) / float64(v.Rate) * float64(time.Second)))
	pause := time.NewTimer(time.Until(due))
	defer pause.Stop()
	select {
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bad reports a finding, unless the version has been removed in the meantime.
func (v *verifier) bad(ctx context.Context, r recorded, id, problem string, cause error) error {
	var there bool
	err := v.db.Once(ctx, func(ctx context.Context, q objects.Querier) error {
		return q.QueryRow(ctx, sqlStillThere, r.bucket, r.key, objects.UUID(r.id)).Scan(&there)
	})
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if !there {
		return nil
	}
	v.done.Bad++
	v.report(Finding{Bucket: r.bucket, Key: r.key, Version: blob.ID(r.id).String(), Blob: id, Problem: problem, Detail: fmt.Sprint(cause)})
	if problem != BlobUnreadable {
		v.failed = 0
		return nil
	}
	if v.failed++; v.failed >= verifyPatience {
		return fmt.Errorf("verify: %d blobs in a row can't be read; is the blob store available? %w", v.failed, cause)
	}
	return nil
}

// checksumCheck recomputes a version's recorded checksum from the bytes that are read: from all of them, or from the
// parts' checksums, where each part is a blob. If none was recorded it does nothing.
type checksumCheck struct {
	algorithm, recorded string

	all   hash.Hash // nil: none was recorded, or the algorithm is unknown here
	part  hash.Hash // nil: all hashes the bytes themselves
	parts int
}

func newChecksumCheck(algorithm, recorded string) *checksumCheck {
	r := &checksumCheck{algorithm: algorithm, recorded: recorded}
	if recorded == "" {
		return r
	}
	r.all = objects.ChecksumHash(algorithm)
	if objects.IsComposite(recorded) {
		r.part = objects.ChecksumHash(algorithm)
	}
	return r
}

// Write implements [io.Writer]. It does not fail.
func (r *checksumCheck) Write(p []byte) (int, error) {
	switch {
	case r.part != nil:
		return r.part.Write(p)
	case r.all != nil:
		return r.all.Write(p)
	}
	return len(p), nil
}

// endBlob is called at the end of each blob.
func (r *checksumCheck) endBlob() {
	if r.part != nil {
		r.all.Write(r.part.Sum(nil))
		r.part.Reset()
		r.parts++
	}
}

// check returns an error if the checksum is not the recorded one.
func (r *checksumCheck) check() error {
	if r.all == nil {
		return nil
	}
	got := base64.StdEncoding.EncodeToString(r.all.Sum(nil))
	if r.part != nil {
		got += "-" + strconv.Itoa(r.parts)
	}
	if got != r.recorded {
		return fmt.Errorf("the stored bytes have the %s %s, but %s is recorded", r.algorithm, got, r.recorded)
	}
	return nil
}

//go:build unix

package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

// replace replaces a blob's bytes, or removes them.
func (w *world) replace(id blob.ID, data *string) {
	w.t.Helper()
	err := w.store.Delete(w.t.Context(), id)
	if err == nil && data != nil {
		err = w.store.Put(w.t.Context(), id, body(*data), int64(len(*data)))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) blobOf(bucket, key string) (id blob.ID) {
	w.t.Helper()
	err := w.admin.QueryRow(w.t.Context(), `SELECT v.blobs[cardinality(v.blobs)] FROM objects.pointers p JOIN objects.versions v ON v.id = p.version
		WHERE p.bucket = $1 AND p.key = $2`, bucket, key).Scan((*[16]byte)(&id))
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

func TestVerifyFindsWhateverHappenedToTheBytes(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	for _, key := range []string{"empty", "fine", "gone", "longer", "other", "shorter"} {
		put(t, holder, bucket, "1001/"+key, map[bool]string{true: "", false: "0123456789"}[key == "empty"])
	}
	m := begin(t, holder, bucket, "")
	m.part(1, bytes.Repeat([]byte("a"), 5*mib))
	m.part(2, []byte("end"))
	if _, err := m.complete(holder, m.parts); err != nil {
		t.Fatal(err)
	}
	db := objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0)
	verify := func(o maintenance.Verify) (maintenance.Verified, map[string]string) {
		t.Helper()
		found := map[string]string{}
		v, err := maintenance.New(db, w.store).Verify(t.Context(), o, func(f maintenance.Finding) { found[f.Key] = f.Problem })
		if err != nil {
			t.Fatal(err)
		}
		return v, found
	}
	if v, found := verify(maintenance.Verify{}); len(found) > 0 || v.Versions != 7 || v.Bytes != 5*mib+53 || v.Bad != 0 {
		t.Errorf("of sound bytes: %+v, %v", v, found)
	}
	longer, other, shorter, end := "0123456789x", "0123456780", "012345678", "END"
	w.replace(w.blobOf(bucket, "1001/gone"), nil)
	w.replace(w.blobOf(bucket, "1001/longer"), &longer)
	w.replace(w.blobOf(bucket, "1001/other"), &other)
	w.replace(w.blobOf(bucket, "1001/shorter"), &shorter)
	w.replace(w.blobOf(bucket, invoice), &end)
	want := map[string]string{"1001/gone": maintenance.BlobMissing, "1001/longer": maintenance.BlobSize, "1001/other": maintenance.BlobContent, "1001/shorter": maintenance.BlobSize, invoice: maintenance.BlobContent}
	if v, found := verify(maintenance.Verify{}); !maps.Equal(found, want) || v.Bad != 5 {
		t.Errorf("found %v, %+v; want %v", found, v, want)
	}
	if _, found := verify(maintenance.Verify{Bucket: bucket, Prefix: "1001/o"}); !maps.Equal(found, map[string]string{"1001/other": maintenance.BlobContent}) {
		t.Errorf("below a prefix: %v", found)
	}
	if v, found := verify(maintenance.Verify{Bucket: bucket, After: "1001/longer"}); len(found) != 2 || v.Versions != 2 || v.Key != "1001/shorter" {
		t.Errorf("after a key: %v, %+v", found, v)
	}
	if _, err := maintenance.New(db, w.store).Verify(t.Context(), maintenance.Verify{Bucket: "nowhere"}, nil); !errors.Is(err, objects.ErrNoBucket) {
		t.Errorf("a bucket that is not there: %v", err)
	}
}

func TestVerifyReadsKeptVersionsManyPagesAndHoldsItsRate(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{All: true}); err != nil {
		t.Fatal(err)
	}
	holder := w.lease("orders/1001", 5)
	for i := range 3 {
		put(t, holder, bucket, invoice, fmt.Sprint("version ", i))
	}
	// 1,200 more kept versions of the same bytes, on few keys: pages end inside a key
	if _, err := w.admin.Exec(t.Context(), `INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, resource, token, kept_order, kept_at)
		SELECT gen_random_uuid(), v.bucket, '1001/k' || i % 3, v.blobs, v.blob_sizes, v.size, v.etag, v.resource, v.token, nextval('objects.kept_order'), now()
		  FROM objects.pointers p JOIN objects.versions v ON v.id = p.version, generate_series(1, 1200) i`); err != nil {
		t.Fatal(err)
	}
	db := objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0)
	var versions []string
	begun := time.Now()
	v, err := maintenance.New(db, w.store).Verify(t.Context(), maintenance.Verify{Kept: true, Rate: 20_000}, func(f maintenance.Finding) { versions = append(versions, f.Version) })
	if err != nil || v.Versions != 1203 || len(versions) > 0 {
		t.Errorf("%+v, %v, %v", v, err, versions)
	}
	if took := time.Since(begun); took < 400*time.Millisecond {
		t.Errorf("%d bytes took %v", v.Bytes, took)
	}
	if v, err := maintenance.New(db, w.store).Verify(t.Context(), maintenance.Verify{Kept: true, Sample: 0.2}, nil); err != nil || v.Versions < 100 || v.Versions > 500 {
		t.Errorf("a fifth of 1203: %+v, %v", v, err)
	}
}

// A run that ends after any number of blobs, and those that continue it after the key that each tells, find what one run finds.
func TestAVerificationThatIsContinuedSkipsNoKeptVersion(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{All: true}); err != nil {
		t.Fatal(err)
	}
	holder := w.lease("orders/1001", 5)
	for _, key := range []string{"1001/a", "1001/b", "1001/c"} {
		for i := range 3 {
			put(t, holder, bucket, key, fmt.Sprint("version ", i))
			if i < 2 {
				w.replace(w.blobOf(bucket, key), nil)
			}
		}
	}
	keeper := func(store blob.Store) *maintenance.Keeper {
		return maintenance.New(objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0), store)
	}
	for stop := 1; stop <= 9; stop++ {
		found := map[string]bool{}
		o := maintenance.Verify{Bucket: bucket, Kept: true}
		ctx, cancel := context.WithCancel(t.Context())
		v, err := keeper(&ending{Store: w.store, after: stop, end: cancel}).Verify(ctx, o, func(f maintenance.Finding) { found[f.Version] = true })
		if err == nil {
			t.Errorf("ended at blob %d: no error, %+v", stop, v)
		}
		cancel()
		o.After = v.Key
		if v, err = keeper(w.store).Verify(t.Context(), o, func(f maintenance.Finding) { found[f.Version] = true }); err != nil || v.Key != "1001/c" {
			t.Errorf("continued after %q: %+v, %v", o.After, v, err)
		}
		if len(found) != 6 {
			t.Errorf("ended at blob %d, and continued after %q: found %d of 6 versions without bytes", stop, o.After, len(found))
		}
	}
}

// A page of the verification ends among a key's kept versions. Before the next page, the current version is removed, and
// a kept version that was not read yet takes its place.
func TestVerifyReadsAVersionThatBecomesCurrent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{All: true}); err != nil {
		t.Fatal(err)
	}
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "lost")
	w.replace(w.blobOf(bucket, invoice), nil)
	put(t, holder, bucket, invoice, "sound")
	sql := func(statement string, args ...any) {
		t.Helper()
		if tag, err := w.admin.Exec(t.Context(), statement, args...); err != nil || tag.RowsAffected() == 0 {
			t.Errorf("%v, %v", tag, err)
		}
	}
	sql(`INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, resource, token, kept_order, kept_at)
		SELECT gen_random_uuid(), v.bucket, v.key, v.blobs, v.blob_sizes, v.size, v.etag, v.resource, v.token, nextval('objects.kept_order'), now()
		  FROM objects.pointers p JOIN objects.versions v ON v.id = p.version, generate_series(1, 700)`)
	o := maintenance.Verify{Bucket: bucket, Kept: true, Progress: func(v maintenance.Verified) {
		if v.Versions != 100 { // the first page has 500
			return
		}
		sql(`WITH oldest AS (UPDATE objects.versions v SET kept_order = NULL, kept_at = NULL
				WHERE v.bucket = $1 AND v.kept_order = (SELECT min(kept_order) FROM objects.versions WHERE bucket = $1) RETURNING v.id)
			UPDATE objects.pointers p SET version = oldest.id FROM oldest WHERE p.bucket = $1`, bucket)
	}}
	var found []string
	db := objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0)
	v, err := maintenance.New(db, w.store).Verify(t.Context(), o, func(f maintenance.Finding) { found = append(found, f.Problem) })
	if err != nil || v.Versions != 702 || !slices.Equal(found, []string{maintenance.BlobMissing}) {
		t.Errorf("%+v, %v, found %v", v, err, found)
	}
	// Continued after the key, nothing of it is left.
	o.After, o.Progress = v.Key, nil
	if v, err := maintenance.New(db, w.store).Verify(t.Context(), o, nil); err != nil || v.Versions != 0 {
		t.Errorf("continued after %q: %+v, %v", o.After, v, err)
	}
}

// ending is a store that ends its caller's context at a blob.
type ending struct {
	blob.Store

	after int
	end   func()
}

func (s *ending) Size(ctx context.Context, id blob.ID) (int64, error) {
	if s.after--; s.after == 0 {
		s.end()
	}
	return s.Store.Size(ctx, id)
}

func TestVerifyStopsWhereTheStoreIsAway(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	for i := range 20 {
		put(t, holder, bucket, fmt.Sprintf("1001/%02d", i), "data")
	}
	db := objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0)
	var found []string
	v, err := maintenance.New(db, away{w.store}).Verify(t.Context(), maintenance.Verify{}, func(f maintenance.Finding) { found = append(found, f.Problem) })
	if err == nil || !strings.Contains(err.Error(), "is the blob store available?") || v.Bad != 10 || slices.Contains(found, maintenance.BlobMissing) {
		t.Errorf("%+v, %v, %v", v, err, found)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := maintenance.New(db, w.store).Verify(ctx, maintenance.Verify{}, nil); err == nil {
		t.Error("without time it succeeded")
	}
}

// away is a store that does not answer.
type away struct{ blob.Store }

func (away) Size(context.Context, blob.ID) (int64, error) { return 0, errStuck }

// uploadParts uploads an object in two parts, the second of which is a copy of the end of another object.
func uploadParts(t *testing.T, c *awss3.Client, bucket, key, source string, algorithm types.ChecksumAlgorithm, kind types.ChecksumType) {
	t.Helper()
	out, err := c.CreateMultipartUpload(t.Context(), &awss3.CreateMultipartUploadInput{Bucket: &bucket, Key: &key, ChecksumAlgorithm: algorithm, ChecksumType: kind})
	if err != nil {
		t.Fatal(err)
	}
	first, err := c.UploadPart(t.Context(), &awss3.UploadPartInput{
		Bucket: &bucket, Key: &key, UploadId: out.UploadId, PartNumber: aws.Int32(1), Body: bytes.NewReader(bytes.Repeat([]byte("a"), 5*mib)), ChecksumAlgorithm: algorithm,
	})
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.UploadPartCopy(t.Context(), &awss3.UploadPartCopyInput{
		Bucket: &bucket, Key: &key, UploadId: out.UploadId, PartNumber: aws.Int32(2), CopySource: aws.String(bucket + "/" + source), CopySourceRange: aws.String("bytes=2-6"),
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CompleteMultipartUpload(t.Context(), &awss3.CompleteMultipartUploadInput{
		Bucket: &bucket, Key: &key, UploadId: out.UploadId, ChecksumType: kind,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{
			{PartNumber: aws.Int32(1), ETag: first.ETag}, {PartNumber: aws.Int32(2), ETag: second.CopyPartResult.ETag},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestVerifyMakesEveryChecksumAnew(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket, holder := w.bucket(), w.lease("orders/1001", 5)
	for _, algorithm := range types.ChecksumAlgorithm("").Values() {
		if algorithm == types.ChecksumAlgorithmMd5 || strings.HasPrefix(string(algorithm), "XXHASH") || algorithm == types.ChecksumAlgorithmSha512 {
			continue // not served by the port
		}
		name := string(algorithm)
		whole := "1001/whole-" + name
		if _, err := holder.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: &whole, Body: body("0123456789"), ChecksumAlgorithm: algorithm}); err != nil {
			t.Fatal(err)
		}
		if algorithm != types.ChecksumAlgorithmCrc64nvme {
			uploadParts(t, holder, bucket, "1001/composite-"+name, "1001/whole-"+name, algorithm, types.ChecksumTypeComposite)
		}
		if strings.HasPrefix(name, "CRC") {
			uploadParts(t, holder, bucket, "1001/full-"+name, "1001/whole-"+name, algorithm, types.ChecksumTypeFullObject)
		}
		_, err := holder.CopyObject(t.Context(), &awss3.CopyObjectInput{
			Bucket: &bucket, Key: aws.String("1001/copy-" + name), CopySource: aws.String(bucket + "/" + whole), ChecksumAlgorithm: types.ChecksumAlgorithmSha1,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const versions = 5 + 4 + 3 + 5
	if n := w.count("SELECT count(*) FROM objects.versions WHERE attributes ? 'checksum'"); n != versions {
		t.Fatalf("%d versions have a checksum, want %d", n, versions)
	}
	db := objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0)
	var found []maintenance.Finding
	verify := func() {
		t.Helper()
		found = nil
		if v, err := maintenance.New(db, w.store).Verify(t.Context(), maintenance.Verify{}, func(f maintenance.Finding) { found = append(found, f) }); err != nil || v.Versions != versions {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	if verify(); len(found) > 0 {
		t.Errorf("of sound bytes: %+v", found)
	}
	// Other bytes with the same MD5 can be constructed; here a changed record stands for them.
	if _, err := w.admin.Exec(t.Context(), `UPDATE objects.versions SET attributes = jsonb_set(attributes, '{checksum}', to_jsonb(
		CASE left(attributes->>'checksum', 1) WHEN 'A' THEN 'B' ELSE 'A' END || substr(attributes->>'checksum', 2)))`); err != nil {
		t.Fatal(err)
	}
	verify()
	for _, f := range found {
		algorithm := f.Key[strings.LastIndex(f.Key, "-")+1:]
		if strings.Contains(f.Key, "copy") {
			algorithm = "SHA1"
		}
		if f.Problem != maintenance.BlobContent || !strings.HasPrefix(f.Detail, "the stored bytes have the "+algorithm+" ") {
			t.Errorf("found %+v", f)
		}
	}
	if len(found) != versions {
		t.Errorf("found %d, want %d", len(found), versions)
	}
}

//go:build unix

package s3_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/blob/blobtest"
)

// overlong stores other bytes than it receives, which it never reads.
type overlong struct{ blob.Store }

func (o overlong) Put(ctx context.Context, id blob.ID, _ io.Reader, size int64) error {
	return o.Store.Put(ctx, id, io.LimitReader(&zeros{left: size}, size), size)
}

// A store need not read to the end, where the digests are compared.
func TestDigestsAreComparedWhateverTheStoreReads(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(blob.Store) blob.Store{
		"exact":   func(s blob.Store) blob.Store { return blobtest.Exact{Store: s} },
		"reading": func(s blob.Store) blob.Store { return s },
	} {
		w := setup(t, func(c *config) { c.Store = store(c.Store) })
		w.bucket()
		w.arm("orders/1001", 5)
		creds := w.issue("orders/1001", 5)
		for header, value := range map[string]string{"x-amz-checksum-crc32": "AAAAAA==", "Content-MD5": "1B2M2Y8AsgTpgAmY7PhCfg=="} {
			res, text := w.send(raw{creds: creds, method: "PUT", path: "/orders/" + invoice, body: body("tampered"), size: 8, header: map[string]string{header: value}})
			if res.StatusCode != http.StatusBadRequest || !strings.Contains(text, "BadDigest") {
				t.Errorf("%s store, %s: got %d %s", name, header, res.StatusCode, text)
			}
		}
		w.nothingLeft(0, 0)
		put(t, w.holder("orders/1001", 5), "orders", invoice, "as announced")
	}
	w := setup(t, func(c *config) { c.Store = overlong{c.Store} })
	w.bucket()
	if _, err := tryPut(t, w.lease("orders/1001", 5), "orders", invoice, "never read"); err == nil {
		t.Error("an upload that the store never read was committed")
	}
	w.nothingLeft(0, 0)
}

func TestDatesOfConditionsAreInSeconds(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	etag := *put(t, c, bucket, invoice, "data").ETag
	if _, err := w.admin.Exec(t.Context(), "UPDATE objects.versions SET created_at = '2026-01-02 03:04:05.678Z'"); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Format(http.TimeFormat)
	before := time.Date(2026, 1, 2, 3, 4, 4, 0, time.UTC).Format(http.TimeFormat)
	for _, test := range []struct {
		header, value string
		want          int
	}{
		{"If-Modified-Since", at, 304},
		{"If-Modified-Since", before, 200},
		{"If-Unmodified-Since", at, 200},
		{"If-Unmodified-Since", before, 412},
		{"If-None-Match", `"x", ` + etag, 304},
		{"If-None-Match", "W/" + etag + `, "x"`, 304},
		{"If-None-Match", `"x", "y"`, 200},
		{"If-None-Match", etag, 304},
		{"If-Match", `"x", ` + etag, 200},
		{"If-Match", `"x", "y"`, 412},
		{"If-Match", "W/" + etag, 412},
		{"If-Match", "*", 200},
		{"If-None-Match", "*", 304},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: method, path: "/orders/" + invoice, header: map[string]string{test.header: test.value}})
			if res.StatusCode != test.want {
				t.Errorf("%s with %s: %s: got %d %s, want %d", method, test.header, test.value, res.StatusCode, text, test.want)
			}
		}
	}
	_, err := c.CopyObject(t.Context(), &awss3.CopyObjectInput{
		Bucket: &bucket, Key: aws.String("1001/copy"), CopySource: aws.String(bucket + "/" + invoice),
		CopySourceIfUnmodifiedSince: aws.Time(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	})
	if err != nil {
		t.Errorf("copy: %v", err)
	}
}

func TestCompletingComparesTheObjectsChecksum(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	m := begin(t, c, bucket, types.ChecksumAlgorithmSha256)
	part, err := c.UploadPart(t.Context(), &awss3.UploadPartInput{
		Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id, PartNumber: aws.Int32(1),
		Body: strings.NewReader("data"), ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
	})
	if err != nil {
		t.Fatal(err)
	}
	parts := []types.CompletedPart{{PartNumber: aws.Int32(1), ETag: part.ETag}}
	complete := func(sum, crc string, kind types.ChecksumType) error {
		in := &awss3.CompleteMultipartUploadInput{
			Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id, ChecksumType: kind,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
		}
		if sum != "" {
			in.ChecksumSHA256 = &sum
		}
		if crc != "" {
			in.ChecksumCRC32 = &crc
		}
		_, err := c.CompleteMultipartUpload(t.Context(), in)
		return err
	}
	whole := sha256.Sum256([]byte("data"))
	composite := sha256.Sum256(whole[:])
	good := base64.StdEncoding.EncodeToString(composite[:])
	wantRefused(t, complete(base64.StdEncoding.EncodeToString(whole[:]), "", ""), 400, "BadDigest")
	wantRefused(t, complete(good+"-2", "", ""), 400, "BadDigest")
	wantRefused(t, complete(good, "", types.ChecksumTypeFullObject), 400, "InvalidRequest")
	wantRefused(t, complete("", "AAAAAA==", ""), 400, "InvalidRequest")
	w.nothingLeftOf(m)
	if err := complete(good+"-1", "", types.ChecksumTypeComposite); err != nil {
		t.Error(err)
	}
}

// nothingLeftOf checks that the upload is still in progress.
func (w *world) nothingLeftOf(m *multi) {
	w.t.Helper()
	if n := w.count("SELECT count(*) FROM objects.versions"); n != 0 {
		w.t.Errorf("%d versions are recorded", n)
	}
	if n := w.count("SELECT count(*) FROM objects.uploads WHERE id = $1", *m.id); n != 1 {
		w.t.Error("the upload is gone")
	}
}

func TestACompletionIsRepeatedOnlyToItsWriter(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	m := begin(t, c, bucket, "")
	m.part(1, []byte("data"))
	if _, err := m.complete(c, m.parts); err != nil {
		t.Fatal(err)
	}
	_, err := m.complete(w.lease("orders/9999", 1), m.parts)
	wantRefused(t, err, 403, "WrongFencingResource")
	_, err = m.complete(w.holder("orders/1001", 4), m.parts)
	wantRefused(t, err, 412, "StaleFencingToken")
	_, err = m.complete(w.holder("orders/1001", 77), m.parts)
	wantRefused(t, err, 403, "InvalidFencingToken")
	_, err = m.complete(c, []types.CompletedPart{{PartNumber: aws.Int32(7), ETag: aws.String("zz")}})
	wantRefused(t, err, 404, "NoSuchUpload")
	newer := w.lease("orders/1001", 6)
	for who, client := range map[string]*awss3.Client{"its writer, stale by now": c, "the current holder": newer} {
		if out, err := m.complete(client, m.parts); err != nil || out.ETag == nil {
			t.Errorf("%s: %v", who, err)
		}
	}
}

func TestNamesThatCannotBeStoredAreRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	put(t, c, bucket, invoice, "data")
	creds := w.issue("orders/1001", 5)
	long := "1001/" + strings.Repeat("k", 1020)
	put(t, c, bucket, long[:1024], "the longest key")
	for key, want := range map[string]string{
		long: "KeyTooLongError", "1001/" + strings.Repeat("%C3%A9", 510): "KeyTooLongError", "1001/a%00b": "InvalidArgument", "1001/a%FFb": "InvalidArgument",
	} {
		for _, r := range []raw{
			{method: "PUT", body: body("x"), size: 1},
			{method: "GET"},
			{method: "DELETE"},
			{method: "POST", path: "?uploads="},
			{method: "GET", path: "?uploadId=0123456789abcdef0123456789abcdef"},
			{method: "PUT", path: "?partNumber=1&uploadId=0123456789abcdef0123456789abcdef", body: body("x"), size: 1},
			{method: "DELETE", path: "?uploadId=0123456789abcdef0123456789abcdef"},
			{method: "PUT", header: map[string]string{"X-Amz-Copy-Source": bucket + "/" + invoice}},
		} {
			r.creds, r.path = creds, "/orders/"+key+r.path
			if res, text := w.send(r); res.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
				t.Errorf("%s %.60s: got %d %s, want 400 %s", r.method, r.path, res.StatusCode, text, want)
			}
		}
		if strings.HasPrefix(want, "Key") {
			continue
		}
		text := strings.TrimPrefix(key, "1001/")
		for _, query := range []string{"list-type=2&prefix=", "list-type=2&start-after=", "list-type=2&delimiter=", "marker=", "prefix=", "delimiter=", "uploads=&key-marker=", "uploads=&prefix="} {
			if res, answer := w.send(raw{creds: creds, method: "GET", path: "/orders?" + query + text}); res.StatusCode != http.StatusBadRequest || !strings.Contains(answer, "InvalidArgument") {
				t.Errorf("%s%s: got %d %s", query, text, res.StatusCode, answer)
			}
		}
		if res, answer := w.send(raw{creds: creds, method: "GET", path: "/?prefix=" + text}); res.StatusCode != http.StatusBadRequest {
			t.Errorf("buckets: got %d %s", res.StatusCode, answer)
		}
	}
	out, err := c.DeleteObjects(t.Context(), &awss3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: &long}}}})
	if err != nil || len(out.Errors) != 1 || *out.Errors[0].Code != "KeyTooLongError" {
		t.Errorf("delete: got %+v, %v", out, err)
	}
	token := base64.RawURLEncoding.EncodeToString([]byte("\xff"))
	if res, text := w.send(raw{creds: creds, method: "GET", path: "/orders?list-type=2&continuation-token=" + token}); res.StatusCode != http.StatusBadRequest {
		t.Errorf("token: got %d %s", res.StatusCode, text)
	}
	w.nothingLeft(2, 2)
}

func TestMetadataIsStoredAsItIsOrNotAtAll(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	for name, value := range map[string]string{"Content-Type": "a/b;x=\xff", "Content-Disposition": "\xfe", "x-amz-meta-na\xffme": "x"} {
		for _, r := range []raw{
			{method: "PUT", path: "/orders/" + invoice, body: body("x"), size: 1}, {method: "POST", path: "/orders/" + invoice + "?uploads="},
		} {
			r.creds, r.header = w.issue("orders/1001", 5), map[string]string{name: value}
			req := w.request(r)
			var wire bytes.Buffer
			if err := req.Header.Write(&wire); err != nil {
				t.Fatal(err)
			}
			res, err := httpClient(t).Do(req)
			if err != nil {
				continue // not even sent
			}
			if text := readAll(t, res.Body); res.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: %q: got %d %s", name, value, res.StatusCode, text)
			}
		}
	}
	w.nothingLeft(0, 0)
	put(t, w.holder("orders/1001", 5), "orders", invoice, "x")
}

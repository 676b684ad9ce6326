//go:build unix

package s3_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/internal/testenv"
)

const mib = 1 << 20

// multi is a multipart upload of a test.
type multi struct {
	t      *testing.T
	c      *awss3.Client
	id     *string
	bucket string
	parts  []types.CompletedPart
}

func begin(t *testing.T, c *awss3.Client, bucket string, algorithm types.ChecksumAlgorithm) *multi {
	t.Helper()
	out, err := c.CreateMultipartUpload(t.Context(), &awss3.CreateMultipartUploadInput{
		Bucket: &bucket, Key: aws.String(invoice),
		ChecksumAlgorithm: algorithm, ContentType: aws.String("text/plain"), Metadata: map[string]string{"colour": "blue"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &multi{t: t, c: c, id: out.UploadId, bucket: bucket}
}

func (m *multi) tryPart(c *awss3.Client, number int32, data []byte) (*awss3.UploadPartOutput, error) {
	return c.UploadPart(m.t.Context(), &awss3.UploadPartInput{Bucket: &m.bucket, Key: aws.String(invoice), UploadId: m.id, PartNumber: &number, Body: bytes.NewReader(data)})
}

func (m *multi) part(number int32, data []byte) {
	m.t.Helper()
	out, err := m.tryPart(m.c, number, data)
	if err != nil {
		m.t.Fatal(err)
	}
	m.parts = append(m.parts, types.CompletedPart{PartNumber: &number, ETag: out.ETag})
}

func (m *multi) complete(c *awss3.Client, parts []types.CompletedPart) (*awss3.CompleteMultipartUploadOutput, error) {
	return c.CompleteMultipartUpload(m.t.Context(), &awss3.CompleteMultipartUploadInput{
		Bucket: &m.bucket, Key: aws.String(invoice), UploadId: m.id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
}

// checkReads reads across the boundary of two parts, and one part.
func (m *multi) checkReads(etag, second string) {
	t := m.t
	t.Helper()
	for wanted, want := range map[string]string{"bytes=5242878-5242881": "aabb", "bytes=-3": "bbb", "bytes=0-1": "aa", "bytes=5242880-5242880": "b"} {
		in := getInput(m.bucket, invoice)
		in.Range = &wanted
		out, err := m.c.GetObject(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, out.Body); got != want {
			t.Errorf("%s: got %q, want %q", wanted, got, want)
		}
	}
	in := getInput(m.bucket, invoice)
	in.PartNumber = aws.Int32(2)
	out, err := m.c.GetObject(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, out.Body); got != second || *out.PartsCount != 2 || *out.ETag != etag || *out.ContentType != "text/plain" || out.Metadata["colour"] != "blue" {
		t.Errorf("part 2: %d bytes, %+v", len(got), out)
	}
}

func TestAMultipartUploadIsOneObject(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	m := begin(t, holder, bucket, types.ChecksumAlgorithmCrc32)
	first, second := bytes.Repeat([]byte("a"), 5*mib), bytes.Repeat([]byte("b"), 1000)
	m.part(1, []byte("to be replaced"))
	m.parts = nil
	m.part(1, first)
	m.part(7, second)
	_, err := m.tryPart(holder, 9, []byte("not listed"))
	if err != nil {
		t.Fatal(err)
	}
	uploads, err := holder.ListMultipartUploads(t.Context(), &awss3.ListMultipartUploadsInput{Bucket: &bucket})
	if err != nil || len(uploads.Uploads) != 1 || *uploads.Uploads[0].UploadId != *m.id {
		t.Errorf("uploads: %+v, %v", uploads, err)
	}
	listed, err := holder.ListParts(t.Context(), &awss3.ListPartsInput{Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id, MaxParts: aws.Int32(2)})
	if err != nil || len(listed.Parts) != 2 || !*listed.IsTruncated || *listed.Parts[1].PartNumber != 7 || *listed.Parts[0].Size != 5*mib {
		t.Errorf("parts: %+v, %v", listed, err)
	}
	_, err = holder.GetObject(t.Context(), getInput(bucket, invoice))
	wantRefused(t, err, 404, "NoSuchKey")
	var etag string
	for range 2 { // the second completion is a repetition
		out, err := m.complete(holder, m.parts)
		if err != nil {
			t.Fatal(err)
		}
		if etag = *out.ETag; !strings.HasSuffix(etag, `-2"`) || out.ChecksumType != types.ChecksumTypeComposite || !strings.HasSuffix(aws.ToString(out.ChecksumCRC32), "-2") {
			t.Errorf("got %+v", out)
		}
	}
	if got := get(t, w.root(), bucket, invoice); got != string(first)+string(second) {
		t.Errorf("the object holds %d bytes", len(got))
	}
	m.checkReads(etag, string(second))
	if n := w.count("SELECT count(*) FROM objects.uploads") + w.count("SELECT count(*) FROM objects.parts"); n != 0 {
		t.Errorf("%d rows of the upload are left", n)
	}
	for state, want := range map[string]int{"live": 2, "condemned": 2} {
		if n := w.count("SELECT count(*) FROM objects.blobs WHERE state = $1", state); n != want {
			t.Errorf("%d blobs are %s, want %d", n, state, want)
		}
	}
	if n := w.pending(); n != 0 {
		t.Errorf("%d blobs are pending", n)
	}
}

func TestAStaleMultipartUploadIsRefusedAtEachStep(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	old := w.lease("orders/1001", 5)
	m := begin(t, old, bucket, "")
	m.part(1, []byte("data"))
	next := w.lease("orders/1001", 6)
	put(t, next, bucket, invoice, "by 6")
	_, err := m.complete(old, m.parts)
	wantRefused(t, err, 412, "StaleFencingToken", "5", "6", "orders/1001")
	_, err = m.tryPart(old, 2, []byte("more"))
	wantRefused(t, err, 412, "StaleFencingToken")
	_, err = old.CreateMultipartUpload(t.Context(), &awss3.CreateMultipartUploadInput{Bucket: &bucket, Key: aws.String(invoice)})
	wantRefused(t, err, 412, "StaleFencingToken")
	_, err = old.AbortMultipartUpload(t.Context(), &awss3.AbortMultipartUploadInput{Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id})
	wantRefused(t, err, 412, "StaleFencingToken")
	_, err = w.root().CreateMultipartUpload(t.Context(), &awss3.CreateMultipartUploadInput{Bucket: &bucket, Key: aws.String(invoice)})
	wantRefused(t, err, 403, "MissingFencingToken")
	if got := get(t, next, bucket, invoice); got != "by 6" {
		t.Errorf("the object holds %q", got)
	}
	// The new holder may abort it.
	if _, err = next.AbortMultipartUpload(t.Context(), &awss3.AbortMultipartUploadInput{Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id}); err != nil {
		t.Error(err)
	}
	w.nothingLeft(1, 1)
	_, err = m.complete(next, m.parts)
	wantRefused(t, err, 404, "NoSuchUpload")
	_, err = m.tryPart(next, 1, []byte("x"))
	wantRefused(t, err, 404, "NoSuchUpload")
}

func TestCompletingChecksTheListedParts(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	m := begin(t, holder, bucket, "")
	m.part(1, []byte("small"))
	m.part(2, []byte("last"))
	one, two := m.parts[0], m.parts[1]
	_, err := m.complete(holder, []types.CompletedPart{two, one})
	wantRefused(t, err, 400, "InvalidPartOrder")
	_, err = m.complete(holder, []types.CompletedPart{one, two})
	wantRefused(t, err, 400, "EntityTooSmall")
	_, err = m.complete(holder, []types.CompletedPart{{PartNumber: aws.Int32(1), ETag: two.ETag}})
	wantRefused(t, err, 400, "InvalidPart")
	_, err = m.complete(holder, []types.CompletedPart{{PartNumber: aws.Int32(3), ETag: two.ETag}})
	wantRefused(t, err, 400, "InvalidPart")
	_, err = holder.CompleteMultipartUpload(t.Context(), &awss3.CompleteMultipartUploadInput{
		Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{two}}, IfMatch: aws.String(etagOf("x")),
	})
	wantRefused(t, err, 404, "NoSuchKey")
	if _, err := m.complete(holder, []types.CompletedPart{two}); err != nil { // a refused completion can be corrected
		t.Fatal(err)
	}
	if got := get(t, holder, bucket, invoice); got != "last" {
		t.Errorf("the object holds %q", got)
	}
	for _, id := range []string{"x", "../../etc", strings.Repeat("0", 32)} {
		m.id = &id
		_, err = m.complete(holder, []types.CompletedPart{two})
		wantRefused(t, err, 404, "NoSuchUpload")
	}
}

func TestACompletionWhoseAcknowledgementIsLostIsResolved(t *testing.T) {
	t.Parallel()
	for name, hit := range map[string]fault{"reply lost": loseReply, "request lost": loseRequest, "request delayed": delayRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &faulty{}
			w := setup(t, throughFaulty(t, f))
			bucket := w.bucket()
			m := begin(t, w.lease("orders/1001", 5), bucket, "")
			m.part(1, []byte("data"))
			f.strike("objects.complete_multipart", false, hit)
			if _, err := m.complete(m.c, m.parts); err != nil || f.left() != 0 {
				t.Errorf("got %v; %d faults left", err, f.left())
			}
			put(t, m.c, bucket, invoice, "later")
			if f.delayed != nil {
				f.delayed()
			}
			if got := get(t, m.c, bucket, invoice); got != "later" {
				t.Errorf("the object holds %q", got)
			}
		})
	}
}

// If another attempt of a completion finishes while this one reads the parts, both return the same answer.
func TestACompletionThatIsOvertakenSaysThatItIsDone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	m := begin(t, w.lease("orders/1001", 5), bucket, "")
	m.part(1, []byte("data"))
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE objects.parts IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	list := fmt.Sprintf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>", *m.parts[0].ETag)
	done := w.async(raw{creds: w.issue("orders/1001", 5), method: "POST", path: "/orders/" + invoice + "?uploadId=" + *m.id, body: body(list), size: int64(len(list))})
	testenv.Eventually(t, "it waits for the parts", func() bool {
		return w.count("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FROM objects.parts%' AND datname = current_database()") == 1
	})
	const overtake = `SELECT objects.complete_multipart(u.id, u.bucket, u.key, ARRAY[p.blob], ARRAY[p.size], md5(decode(p.etag, 'hex')) || '-1', '{}', u.resource, u.token, NULL, NULL, NULL, false)
		FROM objects.uploads u JOIN objects.parts p ON p.upload = u.id`
	if _, err := tx.Exec(t.Context(), overtake); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-done; a.status != http.StatusOK || !strings.Contains(a.body, "-1&#34;</ETag>") {
		t.Errorf("got %+v", a)
	}
	if got := get(t, m.c, bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
}

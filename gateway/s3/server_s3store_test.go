//go:build unix

package s3_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/internal/testenv/s3posix"
)

// onS3 makes the server keep its blobs on an S3 service.
func onS3(t *testing.T, endpoint string) option {
	t.Helper()
	store, err := blob.OpenS3(t.Context(), blob.S3Config{
		Bucket: s3posix.Bucket, Prefix: "fencegate", Endpoint: endpoint, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(s3posix.Access, s3posix.Secret, ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return func(c *config) { c.Store.(*spy).Store = store }
}

func TestObjectsOnAnS3Service(t *testing.T) {
	t.Parallel()
	w := setup(t, onS3(t, s3posix.Start(t).URL()))
	bucket := w.bucket()
	if err := w.srv.Keeper().Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	holder := w.lease("orders/1001", 5)
	for _, data := range []string{"", "old", strings.Repeat("0123456789", 400_000)} {
		put(t, holder, bucket, invoice, data)
		if got := get(t, holder, bucket, invoice); got != data {
			t.Errorf("%d bytes: read back %d others", len(data), len(got))
		}
	}
	in := getInput(bucket, invoice)
	in.Range = aws.String("bytes=3999995-")
	out, err := holder.GetObject(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, out.Body); got != "56789" {
		t.Errorf("a range: %q", got)
	}
	copied := "1001/copy"
	source := bucket + "/" + invoice
	if _, err := holder.CopyObject(t.Context(), &awss3.CopyObjectInput{Bucket: &bucket, Key: &copied, CopySource: &source}); err != nil {
		t.Error(err)
	}
	if got := get(t, holder, bucket, copied); len(got) != 4_000_000 {
		t.Errorf("the copy has %d bytes", len(got))
	}
	m := begin(t, holder, bucket, "")
	first := bytes.Repeat([]byte("a"), 5<<20)
	m.part(1, first)
	m.part(2, []byte("end"))
	if _, err := m.complete(holder, m.parts); err != nil {
		t.Fatal(err)
	}
	if got := get(t, holder, bucket, invoice); got != string(first)+"end" {
		t.Errorf("the object of parts has %d bytes", len(got))
	}
	w.arm("orders/1001", 6)
	_, err = tryPut(t, holder, bucket, invoice, "stale")
	wantRefused(t, err, 412, "StaleFencingToken")
	w.age("25 hours")
	if _, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{Store: true}); err != nil {
		t.Fatal(err)
	}
	if n, live := w.blobs(), w.count("SELECT count(*) FROM objects.blobs WHERE state = 'live'"); n != live {
		t.Errorf("%d blobs are stored, %d are live", n, live)
	}
}

func TestOneOfManyCreatesWinsOnAnS3Service(t *testing.T) {
	t.Parallel()
	w := setup(t, onS3(t, s3posix.Start(t).URL()))
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	var won atomic.Int32
	var winner atomic.Value
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			data := fmt.Sprintf("writer %d", i)
			_, err := holder.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: aws.String(invoice), Body: body(data), IfNoneMatch: aws.String("*")})
			if err == nil {
				won.Add(1)
				winner.Store(data)
				return
			}
			wantRefused(t, err, 412, "PreconditionFailed")
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d of 64 creates won", won.Load())
	}
	if got := get(t, holder, bucket, invoice); got != winner.Load() {
		t.Errorf("the object is %q, the winner wrote %q", got, winner.Load())
	}
	testenv.Eventually(t, "the others' bytes are gone", func() bool { return w.blobs() == 1 })
}

func TestTroubleOfTheS3ServiceIsToldAndLosesNothing(t *testing.T) {
	t.Parallel()
	f := s3posix.StartFlaky(t)
	w := setup(t, onS3(t, f.URL))
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	before := strings.Repeat("before ", 200_000)
	put(t, holder, bucket, invoice, before)
	puts := func(fault http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPut {
				f.Pass(w, r)
				return
			}
			fault(w, r)
		}
	}
	cutInTheMiddle := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, 100_000)
		s3posix.Cut(w, r)
	}
	for name, fault := range map[string]http.HandlerFunc{
		"500": s3posix.Answer(500), "503": s3posix.Answer(503), "403": s3posix.Answer(403), "cut": cutInTheMiddle, "the answer is lost": f.Lose,
	} {
		f.Break(puts(fault))
		_, err := tryPut(t, holder, bucket, invoice, strings.Repeat("after ", 200_000))
		wantRefused(t, err, 503, "ServiceUnavailable")
		m := begin(t, holder, bucket, "")
		_, err = m.tryPart(holder, 1, []byte("part"))
		wantRefused(t, err, 503, "ServiceUnavailable")
		f.Repair()
		if got := get(t, holder, bucket, invoice); got != before {
			t.Errorf("%s: the object has %d bytes", name, len(got))
		}
	}
	f.Break(func(w http.ResponseWriter, r *http.Request) { // a read that breaks off in the middle
		w.Header().Set("Content-Length", fmt.Sprint(len(before)))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(before)-1, len(before)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write([]byte(before[:500_000]))
		s3posix.Cut(w, r)
	})
	out, err := holder.GetObject(t.Context(), getInput(bucket, invoice))
	if err == nil {
		_, err = io.Copy(io.Discard, out.Body)
		err = errors.Join(err, out.Body.Close())
	}
	if err == nil {
		t.Error("a read that was cut succeeded")
	}
	f.Break(s3posix.Answer(503))
	_, err = holder.GetObject(t.Context(), getInput(bucket, invoice))
	wantRefused(t, err, 503, "ServiceUnavailable")
	f.Repair()
	put(t, holder, bucket, invoice, "at last")
	if got := get(t, holder, bucket, invoice); got != "at last" {
		t.Errorf("the object is %q", got)
	}
	w.liveBlobsAreCurrent()
}

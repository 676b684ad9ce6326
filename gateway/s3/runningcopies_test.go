//go:build unix

package s3_test

import (
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/testenv"
)

const (
	copySource = "1001/source"
	copyTarget = "1001/copy"
)

// impatient makes the answer of a copy begin at once.
func impatient(c *config) { c.Options.SetPatience(20 * time.Millisecond) }

// sourced writes the source of copies, larger than what is read at once.
func (w *world) sourced() (bucket, data string) {
	w.t.Helper()
	bucket, data = w.bucket(), strings.Repeat("0123456789", 300_000)
	put(w.t, w.lease("orders/1001", 5), bucket, copySource, data)
	w.store.puts.Store(0)
	return bucket, data
}

// copyRaw returns a copy with a chosen invocation id.
func (w *world) copyRaw(token int, invocation string) raw {
	return raw{
		creds: w.issue("orders/1001", tokenOf(token)), method: "PUT", path: "/orders/" + copyTarget, invocation: invocation,
		header: map[string]string{"X-Amz-Copy-Source": "orders/" + copySource},
	}
}

// begun waits until the store is asked to take n bodies.
func (w *world) begun(n int32) {
	w.t.Helper()
	testenv.Eventually(w.t, "the store is asked", func() bool { return w.store.puts.Load() == n })
}

// A client that reads within its time-out stays: status and headers come early, then blanks, then the result.
func TestTheAnswerOfASlowCopyBeginsBeforeItsEnd(t *testing.T) {
	t.Parallel()
	w := setup(t, impatient)
	bucket, data := w.sourced()
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{All: true}); err != nil {
		t.Fatal(err)
	}
	release := w.store.hold()
	defer release()
	res, err := httpClient(t).Do(w.request(w.copyRaw(5, "slow")))
	if err != nil {
		t.Fatal(err)
	}
	const begins = xml.Header + "  "
	text := make([]byte, len(begins))
	if _, err := io.ReadFull(res.Body, text); err != nil || string(text) != begins || res.StatusCode != http.StatusOK {
		t.Fatalf("the answer begins as %d %q, %v", res.StatusCode, text, err)
	}
	if s := w.srv.Stats(); s.Uploads != 1 {
		t.Errorf("%d uploads, want the copy", s.Uploads)
	}
	release()
	var made struct {
		XMLName xml.Name `xml:"CopyObjectResult"`
		ETag    string
	}
	if rest := readAll(t, res.Body); xml.Unmarshal([]byte(rest), &made) != nil || made.ETag != etagOf(data) {
		t.Errorf("the answer ends as %q", rest)
	}
	head, err := w.root().HeadObject(t.Context(), &awss3.HeadObjectInput{Bucket: &bucket, Key: aws.String(copyTarget)})
	if err != nil || *head.VersionId != res.Header.Get("X-Amz-Version-Id") {
		t.Errorf("the version is %s, the answer's header %q, %v", aws.ToString(head.VersionId), res.Header.Get("X-Amz-Version-Id"), err)
	}
	testenv.Eventually(t, "its slot is free", func() bool { return w.srv.Stats().Uploads == 0 })
}

func TestSDKsReadTheAnswerOfASlowCopy(t *testing.T) {
	t.Parallel()
	w := setup(t, impatient)
	bucket, data := w.sourced()
	holder := w.holder("orders/1001", 5)
	m := begin(t, holder, bucket, types.ChecksumAlgorithmSha256)
	source := aws.String(bucket + "/" + copySource)
	object := func() (*string, error) {
		out, err := holder.CopyObject(t.Context(), &awss3.CopyObjectInput{Bucket: &bucket, Key: aws.String(copyTarget), CopySource: source})
		if err != nil {
			return nil, err
		}
		return out.CopyObjectResult.ETag, nil
	}
	part := func() (*string, error) {
		out, err := m.copyPart(holder, 1, awss3.UploadPartCopyInput{CopySource: source})
		if err != nil {
			return nil, err
		}
		return out.CopyPartResult.ETag, nil
	}
	for i, slowly := range []func() (*string, error){object, part} {
		release := w.store.hold()
		ended := w.inBackground(func() error {
			etag, err := slowly()
			if err == nil && *etag != etagOf(data) {
				err = errors.New("the ETag is " + *etag)
			}
			return err
		})
		w.begun(int32(i + 1))
		testenv.Eventually(t, "the answer has begun", func() bool { return w.srv.Stats().Requests == 0 })
		release()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	// The lease ends during the copy: the refusal comes in an answer that has begun as 200.
	for i, slowly := range []func() (*string, error){object, part} {
		holder = w.lease("orders/1001", tokenOf(6+2*i))
		release := w.store.hold()
		ended := w.inBackground(func() error {
			_, err := slowly()
			return err
		})
		w.begun(int32(i + 3))
		testenv.Eventually(t, "the answer has begun", func() bool { return w.srv.Stats().Requests == 0 })
		w.arm("orders/1001", tokenOf(7+2*i))
		release()
		api, isAPI := errors.AsType[smithy.APIError](<-ended)
		if !isAPI || api.ErrorCode() != "StaleFencingToken" {
			t.Errorf("got %v", api)
		}
	}
}

// inBackground runs f beside the test.
func (w *world) inBackground(f func() error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	return ended
}

func TestAllAttemptsOfACopyWaitForOneCopy(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket, data := w.sourced()
	release := w.store.hold()
	defer release()
	first := w.async(w.copyRaw(5, "the copy"))
	w.begun(1)
	second, other := w.async(w.copyRaw(5, "the copy")), w.async(w.copyRaw(5, "another"))
	w.begun(2) // the other's
	testenv.Eventually(t, "both attempts have come", func() bool { return w.srv.Stats().Requests == 3 })
	release()
	for _, done := range []<-chan answer{first, second, other} {
		if a := <-done; a.status != http.StatusOK || !strings.Contains(a.body, strings.Trim(etagOf(data), `"`)) {
			t.Errorf("got %+v", a)
		}
	}
	if n := w.store.puts.Load(); n != 2 {
		t.Errorf("%d copies, want 2", n)
	}
	// Later attempts find the result here, or in PostgreSQL: with another version, the source is another one.
	put(t, w.holder("orders/1001", 5), bucket, copySource, strings.Repeat("x", len(data)))
	if res, text := w.send(w.copyRaw(5, "the copy")); res.StatusCode != http.StatusOK || !strings.Contains(text, strings.Trim(etagOf(data), `"`)) {
		t.Errorf("a later attempt: got %d %s", res.StatusCode, text)
	}
	if n := w.store.puts.Load(); n != 3 { // and the source
		t.Errorf("%d bodies stored, want 3", n)
	}
}

func TestAllAttemptsOfACopiedPartWaitForOneCopy(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket, _ := w.sourced()
	m := begin(t, w.holder("orders/1001", 5), bucket, "")
	attempt := w.copyRaw(5, "the part")
	attempt.path = "/orders/" + invoice + "?partNumber=1&uploadId=" + *m.id
	release := w.store.hold()
	defer release()
	first := w.async(attempt)
	w.begun(1)
	second := w.async(attempt)
	testenv.Eventually(t, "both have come", func() bool { return w.srv.Stats().Requests == 2 })
	release()
	for _, done := range []<-chan answer{first, second} {
		if a := <-done; a.status != http.StatusOK {
			t.Errorf("got %+v", a)
		}
	}
	if res, text := w.send(attempt); res.StatusCode != http.StatusOK {
		t.Errorf("a later attempt: got %d %s", res.StatusCode, text)
	}
	if n := w.store.puts.Load(); n != 1 {
		t.Errorf("%d copies, want 1", n)
	}
}

func TestACopyIsAmongTheUploadsThatAreLimited(t *testing.T) {
	t.Parallel()
	w := setup(t, lingers, func(c *config) { c.MaxUploads = 1 })
	w.sourced()
	release := w.store.hold()
	defer release()
	done := w.async(w.copyRaw(5, "the copy"))
	w.begun(1)
	w.wantSlowDown(w.putRaw(5, "", "small"))
	w.wantSlowDown(w.copyRaw(5, "another"))
	again := w.async(w.copyRaw(5, "the copy"))
	testenv.Eventually(t, "it has come", func() bool { return w.srv.Stats().Requests == 2 })
	release()
	for _, done := range []<-chan answer{done, again} {
		if a := <-done; a.status != http.StatusOK {
			t.Errorf("got %+v", a)
		}
	}
}

func TestACopyForWhichNobodyWaitsIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*world, io.Closer){
		"the client leaves": func(_ *world, c io.Closer) { _ = c.Close() },
		"the server stops":  func(w *world, _ io.Closer) { w.stop(); <-w.ended }, // it erases the places of its reserve
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, impatient, func(c *config) { c.DrainTimeout = 100 * time.Millisecond })
			w.sourced()
			w.store.trickles.Store(true)
			res, err := httpClient(t).Do(w.request(w.copyRaw(5, "the copy")))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			leave(w, res.Body)
			testenv.Eventually(t, "given up", func() bool { return w.srv.Stats().Uploads == 0 && w.blobs() == 1 })
			w.nothingLeft(1, 1)
		})
	}
}

// Credentials that end with their lease read nothing afterwards. A repeated copy gets the answer of its first attempt.
func TestACopyIsSaidToBeMadeWhenCredentialsEndWithTheLease(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"CopyObject": copyTarget, "UploadPartCopy": invoice + "?partNumber=2&uploadId="} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := new(leases)
			held := func() (time.Duration, error) { return time.Millisecond, nil }
			l.remaining, l.current = held, held
			w := setup(t, func(c *config) { c.Leases = l })
			bucket, data := w.sourced()
			if strings.HasSuffix(path, "=") {
				path += *begin(t, w.holder("orders/1001", 5), bucket, "").id
			}
			creds, err := w.keys.Issue("orders/1001", 5, time.Now().Add(time.Hour), credentials.WhileHeld|credentials.EndHeld)
			if err != nil {
				t.Fatal(err)
			}
			r := w.copyRaw(5, "the copy")
			r.creds, r.path = creds, "/orders/"+path
			first, text := w.send(r)
			if first.StatusCode != http.StatusOK || !strings.Contains(text, strings.Trim(etagOf(data), `"`)) {
				t.Fatalf("got %d %s", first.StatusCode, text)
			}
			ended := func() (time.Duration, error) {
				over["released"](w)
				return 0, nil
			}
			l.remaining, l.current = ended, ended
			begun := time.Now()
			testenv.Eventually(t, "the lease is over", func() bool { return time.Since(begun) > 5*time.Millisecond })
			if res, text := w.send(r); res.StatusCode != http.StatusOK || !strings.Contains(text, strings.Trim(etagOf(data), `"`)) {
				t.Errorf("again: got %d %s", res.StatusCode, text)
			}
			r.invocation = "another"
			if res, text := w.send(r); res.StatusCode != http.StatusBadRequest || !strings.Contains(text, "ExpiredToken") {
				t.Errorf("another copy: got %d %s", res.StatusCode, text)
			}
			if n := w.store.puts.Load(); n != 1 {
				t.Errorf("%d copies, want 1", n)
			}
		})
	}
}

// A copy is repeated while its first attempt goes on, after its source has changed or is gone.
func TestACopyWaitsForItsFirstAttemptWhateverItsSourceIsNow(t *testing.T) {
	t.Parallel()
	changes := map[string]func(w *world, bucket string){
		"changed": func(w *world, bucket string) {
			put(w.t, w.holder("orders/1001", 5), bucket, copySource, "new")
		},
		"gone": goneSource,
	}
	for name, change := range changes {
		for kind, path := range map[string]string{"object": copyTarget, "part": invoice + "?partNumber=1&uploadId="} {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				bucket, data := w.sourced()
				if kind == "part" {
					path += *begin(t, w.holder("orders/1001", 5), bucket, "").id
				}
				r := w.copyRaw(5, "the copy")
				r.path = "/orders/" + path
				release := w.store.hold()
				defer release()
				first := w.async(r)
				w.begun(1)
				change(w, bucket)
				second := w.async(r)
				testenv.Eventually(t, "both wait", func() bool { return w.srv.CopyClients() == 2 || len(second) > 0 })
				release()
				for i, done := range []<-chan answer{first, second} {
					if a := <-done; a.status != http.StatusOK || !strings.Contains(a.body, strings.Trim(etagOf(data), `"`)) {
						t.Errorf("attempt %d: got %+v", i+1, a)
					}
				}
				if n := w.store.puts.Load(); n != 1 {
					t.Errorf("%d copies, want 1", n)
				}
			})
		}
	}
}

// A small copy does not look for an earlier one before it reads its source.
func TestASmallCopyThatWasMadeIsSaidToBeMadeWhenItsSourceHasChanged(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	part := invoice + "?partNumber=1&uploadId=" + *begin(t, holder, bucket, "").id
	for _, path := range []string{copyTarget, part} {
		put(t, holder, bucket, copySource, "old")
		r := w.copyRaw(5, "the copy")
		r.path = "/orders/" + path
		for _, now := range []string{"new", "newer"} {
			if res, text := w.send(r); res.StatusCode != http.StatusOK || !strings.Contains(text, strings.Trim(etagOf("old"), `"`)) {
				t.Errorf("%s: got %d %s", path, res.StatusCode, text)
			}
			put(t, holder, bucket, copySource, now)
		}
	}
}

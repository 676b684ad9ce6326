//go:build unix

package s3_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
)

// A condition that cannot be parsed or met is never ignored.
func TestNoConditionIsLeftOut(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	upload := begin(t, c, bucket, "")
	object := "/orders/" + invoice
	for _, r := range []struct {
		method, path, header, value string
		status                      int
	}{
		{"PUT", object, "If-Match", `"!other"`, 412},
		{"PUT", object, "If-Match", "!other", 412},
		{"PUT", object, "If-None-Match", "W/" + etagOf("data"), 412},
		{"PUT", object, "X-Amz-If-Match-Size", "4", 501},
		{"PUT", object, "If-Match", "", 400},
		{"PUT", object, "If-Match", `""`, 400},
		{"PUT", object, "If-None-Match", " ", 400},
		{"DELETE", object, "If-Match", "", 400},
		{"DELETE", object, "If-Match", `""`, 400},
		{"DELETE", object, "X-Amz-If-Match-Size", "", 400},
		{"DELETE", object, "X-Amz-If-Match-Last-Modified-Time", "", 400},
		{"DELETE", object, "If-Match", `"!other"`, 412},
		{"DELETE", object, "X-Amz-If-Match-Size", "four", 400},
		{"DELETE", object, "X-Amz-If-Match-Size", "99999999999999999999", 400},
		{"DELETE", object, "X-Amz-If-Match-Last-Modified-Time", "yesterday", 400},
		{"DELETE", object, "X-Amz-If-Match-Last-Modified-Time", "Sun, 01 Jan 2140 00:00:00 GMT", 412},
		{"DELETE", object, "X-Amz-If-Match-Last-Modified-Time", "Monday, 01-Jan-01 00:00:00 GMT", 412},
		{"DELETE", object + "?uploadId=" + *upload.id, "X-Amz-If-Match-Initiated-Time", "Mon, 01 Jan 2001 00:00:00 GMT", 501},
	} {
		put(t, c, bucket, invoice, "data")
		q := raw{creds: w.issue("orders/1001", 5), method: r.method, path: r.path, header: map[string]string{r.header: r.value}}
		if res, text := w.send(q); res.StatusCode != r.status {
			t.Errorf("%s %s: %s: got %d %.200s, want %d", r.method, r.header, r.value, res.StatusCode, text, r.status)
		}
		if res, _ := w.send(raw{creds: q.creds, method: "HEAD", path: object}); res.StatusCode != http.StatusOK || res.ContentLength != 4 {
			t.Errorf("%s %s: %s: the object is changed or gone: %d", r.method, r.header, r.value, res.StatusCode)
		}
	}
	twice := w.request(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: object, header: map[string]string{"If-None-Match": `"other"`}})
	twice.Header.Add("If-None-Match", etagOf("data")) // not signed
	if res, err := httpClient(t).Do(twice); err != nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("a condition twice: got %+v, %v", res, err)
	}
	emptied, err := c.DeleteObjects(t.Context(), &awss3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: aws.String(invoice), ETag: aws.String("")}}}})
	if err != nil || len(emptied.Errors) != 1 || *emptied.Errors[0].Code != "PreconditionFailed" {
		t.Errorf("a deletion of many with an empty ETag: got %+v, %v", emptied, err)
	}
	for header, value := range map[string]string{
		"X-Amz-Copy-Source-Range": "bytes=0-1", "X-Amz-Copy-Source-If-Unmodified-Since": "yesterday", "X-Amz-Copy-Source-If-Modified-Since": "tomorrow",
	} {
		q := raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/1001/copy", header: map[string]string{"X-Amz-Copy-Source": object, header: value}}
		if res, text := w.send(q); res.StatusCode != http.StatusNotImplemented {
			t.Errorf("%s: %s: got %d %.200s", header, value, res.StatusCode, text)
		}
	}
	wantNot(t, c, bucket, "1001/copy")
	if _, err := upload.tryPart(c, 1, []byte("part")); err != nil {
		t.Errorf("the upload is gone: %v", err)
	}
}

func wantNot(t *testing.T, c *awss3.Client, bucket, key string) {
	t.Helper()
	_, err := c.GetObject(t.Context(), getInput(bucket, key))
	wantRefused(t, err, 404, "NoSuchKey")
}

func TestADeletionExpectsADateInEachForm(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	for _, form := range []string{http.TimeFormat, time.RFC850, time.RFC3339} {
		put(t, c, bucket, invoice, "data")
		head, err := c.HeadObject(t.Context(), &awss3.HeadObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
		if err != nil {
			t.Fatal(err)
		}
		q := raw{creds: w.issue("orders/1001", 5), method: "DELETE", path: "/orders/" + invoice, header: map[string]string{
			"X-Amz-If-Match-Last-Modified-Time": head.LastModified.UTC().Format(form), "X-Amz-If-Match-Size": "4",
		}}
		if res, text := w.send(q); res.StatusCode != http.StatusNoContent {
			t.Errorf("%s: got %d %s", form, res.StatusCode, text)
		}
		wantNot(t, c, bucket, invoice)
	}
}

func TestADeletionOfManyNamesEachKey(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.keeping(objects.Keep{All: true})
	c := w.lease("orders/", 5)
	out, err := c.DeleteObjects(t.Context(), &awss3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: aws.String("")}}}})
	if err != nil || len(out.Errors) != 1 || *out.Errors[0].Code != "UserKeyMustBeSpecified" {
		t.Errorf("got %+v, %v", out, err)
	}
	if n := w.count("SELECT count(*) FROM objects.versions"); n != 0 {
		t.Errorf("%d deletions of nothing are recorded", n)
	}
}

func TestADeletionOfManyThatIsMalformedRemovesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	put(t, c, bucket, invoice, "data")
	for _, date := range []string{"", "<LastModifiedTime>" + time.Now().UTC().Format(http.TimeFormat) + "</LastModifiedTime>"} { // parsed here
		document := "<Delete><Object><Key>" + invoice + "</Key></Object><Object>" + date + "<ETag>x</ETag></Object></Delete>"
		if status, code, text := w.ask(w.issue("orders/1001", 5), "POST", "/orders?delete=", document, nil); status != 400 || code != "MalformedXML" {
			t.Errorf("%s: got %d %s", document, status, text)
		}
	}
	if got := get(t, c, bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
}

// A version with the deletion's invocation id that is not committed holds the deletion up: it has found no object by
// then.
func TestADeletionJudgesTheObjectThatItRemoves(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	for header, value := range map[string]string{
		"X-Amz-If-Match-Size": "5", "X-Amz-If-Match-Last-Modified-Time": "Mon, 01 Jan 2001 00:00:00 GMT",
	} {
		tx, err := w.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const sql = `INSERT INTO objects.versions (id, bucket, key, deletion, blobs, blob_sizes, size, etag, resource, token, invocation_id)
			VALUES (gen_random_uuid(), $1, $2, true, '{}', '{}', 0, '', 'orders/1001', 5, $3)`
		if _, err := tx.Exec(t.Context(), sql, bucket, "1001/"+header, header); err != nil {
			t.Fatal(err)
		}
		done := w.async(raw{
			creds: w.issue("orders/1001", 5), method: "DELETE", path: "/orders/1001/" + header, invocation: header, header: map[string]string{header: value},
		})
		testenv.Eventually(t, "the deletion waits", func() bool {
			return w.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
		})
		put(t, c, bucket, "1001/"+header, "data")
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a := <-done; a.status != http.StatusPreconditionFailed {
			t.Errorf("%s: got %+v", header, a)
		}
		if got := get(t, c, bucket, "1001/"+header); got != "data" {
			t.Errorf("the object holds %q", got)
		}
	}
}

func TestDeletingManyAnswersForEachKey(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	one, two := w.lease("orders/1001", 5), w.lease("orders/1002", 6)
	put(t, one, bucket, "1001/a", "x")
	put(t, one, bucket, "1001/b", "x")
	put(t, two, bucket, "1002/a", "x")
	out, err := one.DeleteObjects(t.Context(), &awss3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: []types.ObjectIdentifier{
		{Key: aws.String("1001/a")}, {Key: aws.String("1002/a")}, {Key: aws.String("1001/missing")}, {Key: aws.String("1001/b"), ETag: aws.String(etagOf("y"))},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]string{}
	for _, e := range out.Errors {
		codes[*e.Key] = *e.Code
	}
	if len(out.Deleted) != 2 || len(codes) != 2 || codes["1002/a"] != "WrongFencingResource" || codes["1001/b"] != "PreconditionFailed" {
		t.Errorf("deleted %d, errors %v", len(out.Deleted), codes)
	}
	if got := names(t, w.root(), awss3.ListObjectsV2Input{Bucket: &bucket}); len(got) != 2 || got[0] != "1001/b" || got[1] != "1002/a" {
		t.Errorf("left: %q", got)
	}
	w.arm("orders/1001", 7)
	out, err = one.DeleteObjects(t.Context(), &awss3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: aws.String("1001/b")}}}})
	if err != nil || len(out.Errors) != 1 || *out.Errors[0].Code != "StaleFencingToken" {
		t.Errorf("got %+v, %v", out, err)
	}
}

// A quiet deletion returns refusals only, also for a list with dates, which is parsed by other code.
func TestAQuietDeletionOfManyTellsRefusalsOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	for _, quiet := range []bool{false, true} {
		for _, dated := range []bool{false, true} {
			put(t, holder, bucket, "1001/a", "x")
			list := types.Delete{Quiet: &quiet, Objects: []types.ObjectIdentifier{{Key: aws.String("1001/a")}, {Key: aws.String("1002/a")}}}
			if dated {
				list.Objects[1].LastModifiedTime = aws.Time(time.Now())
			}
			out, err := holder.DeleteObjects(t.Context(), &awss3.DeleteObjectsInput{Bucket: &bucket, Delete: &list})
			if err != nil {
				t.Fatal(err)
			}
			if named := len(out.Deleted) == 1; named == quiet || len(out.Errors) != 1 {
				t.Errorf("quiet %v, dated %v: deleted %+v, errors %+v", quiet, dated, out.Deleted, out.Errors)
			}
			if got := names(t, w.root(), awss3.ListObjectsV2Input{Bucket: &bucket}); len(got) != 0 {
				t.Errorf("left: %q", got)
			}
		}
	}
}

// SDKs write dates in HTTP's form.
func TestDeletingManyExpectsADateOfEach(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "data")
	head, err := holder.HeadObject(t.Context(), &awss3.HeadObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
	if err != nil {
		t.Fatal(err)
	}
	remove := func(c *awss3.Client, modified time.Time) *awss3.DeleteObjectsOutput {
		t.Helper()
		out, err := c.DeleteObjects(t.Context(), &awss3.DeleteObjectsInput{
			Bucket: &bucket, Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: aws.String(invoice), LastModifiedTime: &modified}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := remove(holder, head.LastModified.Add(-time.Hour)); len(out.Deleted) != 0 || len(out.Errors) != 1 || *out.Errors[0].Code != "PreconditionFailed" {
		t.Errorf("another date: got %+v %+v", out.Deleted, out.Errors)
	}
	if out := remove(w.root(), *head.LastModified); len(out.Deleted) != 0 || len(out.Errors) != 1 || *out.Errors[0].Code != "MissingFencingToken" {
		t.Errorf("without a grant: got %+v %+v", out.Deleted, out.Errors)
	}
	if got := get(t, holder, bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
	if out := remove(holder, *head.LastModified); len(out.Deleted) != 1 || *out.Deleted[0].Key != invoice || len(out.Errors) != 0 {
		t.Errorf("its date: got %+v %+v", out.Deleted, out.Errors)
	}
	document := `<Delete><Object><Key>1001/x</Key><LastModifiedTime>yesterday</LastModifiedTime></Object></Delete>`
	if status, code, _ := w.ask(w.issue("orders/1001", 5), "POST", "/orders?delete=", document, nil); status != 400 || code != "MalformedXML" {
		t.Errorf("no date: got %d %s", status, code)
	}
}

//go:build unix

package s3_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

func TestACopyIsAReadOfAnySourceAndAFencedWrite(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	writer := w.lease("orders/1001", 5)
	m := begin(t, writer, bucket, types.ChecksumAlgorithmSha256) // several blobs become one
	m.part(1, bytes.Repeat([]byte("a"), 5*mib))
	m.part(2, []byte("tail"))
	if _, err := m.complete(writer, m.parts); err != nil {
		t.Fatal(err)
	}
	other := w.lease("orders/1002", 3)
	const target = "1002/copy of ü.txt"
	in := func() *awss3.CopyObjectInput {
		return &awss3.CopyObjectInput{Bucket: &bucket, Key: aws.String(target), CopySource: aws.String("orders/1001%2Finvoice.txt")}
	}
	want := strings.Repeat("a", 5*mib) + "tail"
	out, err := other.CopyObject(t.Context(), in())
	if err != nil {
		t.Fatal(err)
	}
	if *out.CopyObjectResult.ETag != etagOf(want) || out.CopyObjectResult.ChecksumSHA256 == nil {
		t.Errorf("got %+v", out.CopyObjectResult)
	}
	head, err := other.HeadObject(t.Context(), &awss3.HeadObjectInput{Bucket: &bucket, Key: aws.String(target)})
	if err != nil || head.Metadata["colour"] != "blue" || *head.ContentType != "text/plain" {
		t.Errorf("got %+v, %v", head, err)
	}
	if got := get(t, other, bucket, target); got != want {
		t.Errorf("the copy holds %d bytes", len(got))
	}
	replace := in()
	replace.MetadataDirective, replace.ContentType, replace.Metadata = types.MetadataDirectiveReplace, aws.String("text/html"), map[string]string{"new": "1"}
	if _, err := other.CopyObject(t.Context(), replace); err != nil {
		t.Fatal(err)
	}
	head, err = other.HeadObject(t.Context(), &awss3.HeadObjectInput{Bucket: &bucket, Key: aws.String(target)})
	if err != nil || head.Metadata["colour"] != "" || head.Metadata["new"] != "1" || *head.ContentType != "text/html" {
		t.Errorf("got %+v, %v", head, err)
	}
	_, err = writer.CopyObject(t.Context(), in())
	wantRefused(t, err, 403, "WrongFencingResource")
	_, err = w.root().CopyObject(t.Context(), in())
	wantRefused(t, err, 403, "MissingFencingToken")
	w.arm("orders/1002", 4)
	_, err = other.CopyObject(t.Context(), in())
	wantRefused(t, err, 412, "StaleFencingToken", "3", "4")
	refuseBadSources(t, w.holder("orders/1002", 4), in)
	if n := w.pending(); n != 0 {
		t.Errorf("%d blobs are pending", n)
	}
}

func refuseBadSources(t *testing.T, current *awss3.Client, in func() *awss3.CopyObjectInput) {
	t.Helper()
	missing, unmet, itself := in(), in(), in()
	missing.CopySource = aws.String("orders/nothing")
	_, err := current.CopyObject(t.Context(), missing)
	wantRefused(t, err, 404, "NoSuchKey")
	unmet.CopySourceIfMatch = aws.String(`"other"`)
	_, err = current.CopyObject(t.Context(), unmet)
	wantRefused(t, err, 412, "PreconditionFailed")
	itself.CopySource = aws.String("orders/1002/copy%20of%20%C3%BC.txt")
	_, err = current.CopyObject(t.Context(), itself)
	wantRefused(t, err, 400, "InvalidRequest")
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
			if told := len(out.Deleted) == 1; told == quiet || len(out.Errors) != 1 {
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

// A key may look as if it contained a version id.
func TestACopysSourceIsTheKeyThatIsNamed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	c := w.lease("orders/1001", 5)
	put(t, c, bucket, "1001/a", "plain")
	put(t, c, bucket, "1001/a?versionId=null", "odd")
	for source, want := range map[string]string{
		"orders/1001/a": "plain", "/orders%2F1001%2Fa": "plain", "/orders/1001/a?versionId=null": "plain",
		"orders/1001/a%3FversionId%3Dnull": "odd", "orders/1001/a%3FversionId%3Dnull?versionId=null": "odd", "orders/1001/a%3FversionId=null": "odd",
	} {
		if res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/1001/copy", header: map[string]string{"X-Amz-Copy-Source": source}}); res.StatusCode != http.StatusOK {
			t.Errorf("%s: got %d %s", source, res.StatusCode, text)
		}
		if got := get(t, c, bucket, "1001/copy"); got != want {
			t.Errorf("%s: the copy holds %q, want %q", source, got, want)
		}
	}
}

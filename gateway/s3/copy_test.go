//go:build unix

package s3_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

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

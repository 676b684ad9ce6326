//go:build unix

package s3_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

func TestAWriteMayBeRefusedWhereAnETagIsCurrent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	unless := func(data, etag string) error {
		_, err := holder.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: aws.String(invoice), Body: body(data), IfNoneMatch: &etag})
		return err
	}
	if err := unless("one", etagOf("one")); err != nil {
		t.Errorf("where there is nothing: %v", err)
	}
	wantRefused(t, unless("two", etagOf("one")), 412, "PreconditionFailed")
	if err := unless("two", etagOf("other")); err != nil {
		t.Errorf("where there is something else: %v", err)
	}
	wantRefused(t, unless("x", etagOf("a")+","+etagOf("b")), 501, "NotImplemented")
	if got := get(t, holder, bucket, invoice); got != "two" {
		t.Errorf("the object holds %q", got)
	}
}

func TestADeletionSaysWhatItExpects(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{false, true} {
		w := setup(t)
		bucket := w.bucket()
		if kept {
			if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{All: true}); err != nil {
				t.Fatal(err)
			}
		}
		holder := w.lease("orders/1001", 5)
		made := put(t, holder, bucket, invoice, "data")
		head, err := holder.HeadObject(t.Context(), &awss3.HeadObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
		if err != nil {
			t.Fatal(err)
		}
		remove := func(size *int64, modified *time.Time, etag, version *string) error {
			_, err := holder.DeleteObject(t.Context(), &awss3.DeleteObjectInput{
				Bucket: &bucket, Key: aws.String(invoice), IfMatchSize: size, IfMatchLastModifiedTime: modified, IfMatch: etag, VersionId: version,
			})
			return err
		}
		versions := []*string{nil}
		if kept {
			versions = append(versions, made.VersionId)
		}
		for _, version := range versions {
			wantRefused(t, remove(aws.Int64(5), nil, nil, version), 412, "PreconditionFailed")
			wantRefused(t, remove(nil, aws.Time(head.LastModified.Add(-time.Second)), nil, version), 412, "PreconditionFailed")
			wantRefused(t, remove(aws.Int64(4), head.LastModified, aws.String(etagOf("x")), version), 412, "PreconditionFailed")
		}
		if err := remove(aws.Int64(4), head.LastModified, made.ETag, nil); err != nil {
			t.Errorf("kept %v: %v", kept, err)
		}
		if err := remove(aws.Int64(5), nil, nil, nil); kept {
			wantRefused(t, err, 412, "PreconditionFailed") // the current version is a deletion marker
		} else if err != nil {
			t.Errorf("what is gone: %v", err)
		}
		if !kept {
			continue
		}
		if err := remove(aws.Int64(4), head.LastModified, made.ETag, made.VersionId); err != nil {
			t.Errorf("a version: %v", err)
		}
		if err := remove(aws.Int64(5), nil, nil, made.VersionId); err != nil {
			t.Errorf("a version that is gone: %v", err)
		}
	}
}

// versitygw drops an error that names no version for an entry with a version, and the client would take the version for
// deleted.
func TestARefusalIsToldAlsoForAVersionAmongMany(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{All: true}); err != nil {
		t.Fatal(err)
	}
	stale := w.lease("orders/1001", 5)
	made := put(t, stale, bucket, invoice, "data")
	w.arm("orders/1001", 6)
	out, err := stale.DeleteObjects(t.Context(), &awss3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{
		Objects: []types.ObjectIdentifier{{Key: aws.String(invoice), VersionId: made.VersionId}, {Key: aws.String(invoice)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Deleted) != 0 || len(out.Errors) != 2 || *out.Errors[0].Code != "StaleFencingToken" || *out.Errors[0].VersionId != *made.VersionId {
		t.Errorf("got %+v, want two refusals", out)
	}
}

func TestAnswersHoldWhatClientsLookFor(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	_, err := holder.PutObject(t.Context(), &awss3.PutObjectInput{
		Bucket: &bucket, Key: aws.String(invoice), Body: body("data"), Tagging: aws.String("d=1&b=2&a=3&c=4"), ContentEncoding: aws.String("deflate, gzip"),
	})
	if err != nil {
		t.Fatal(err)
	}
	root := credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}
	res, _ := w.send(raw{creds: root, method: "GET", path: "/orders/" + invoice, header: map[string]string{"If-None-Match": etagOf("data")}})
	if res.StatusCode != http.StatusNotModified || res.Header.Get("ETag") != etagOf("data") || res.Header.Get("Last-Modified") == "" {
		t.Errorf("what is not modified: %d %v", res.StatusCode, res.Header)
	}
	if res, _ = w.send(raw{creds: root, method: "HEAD", path: "/orders/" + invoice}); res.Header.Get("Content-Encoding") != "deflate, gzip" {
		t.Errorf("Content-Encoding is %q", res.Header.Get("Content-Encoding"))
	}
	res, _ = w.send(raw{creds: root, method: "GET", path: "/orders/" + invoice + "?attributes", header: map[string]string{"x-amz-object-attributes": "ETag"}})
	if _, err := http.ParseTime(res.Header.Get("Last-Modified")); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("attributes: %d, %v", res.StatusCode, err)
	}
	for range 5 { // the order of a map is random
		tags, err := w.root().GetObjectTagging(t.Context(), &awss3.GetObjectTaggingInput{Bucket: &bucket, Key: aws.String(invoice)})
		if err != nil || !slices.IsSortedFunc(tags.TagSet, func(a, b types.Tag) int { return strings.Compare(*a.Key, *b.Key) }) || len(tags.TagSet) != 4 {
			t.Fatalf("the tags are %+v, %v", tags, err)
		}
	}
	for _, list := range []string{"/orders", "/orders?list-type=2", "/orders?versions"} {
		if _, text := w.send(raw{creds: root, method: "GET", path: list}); strings.Contains(text, "<Delimiter>") {
			t.Errorf("%s has a delimiter: %s", list, text)
		}
	}
	for _, name := range []string{"a..b", "a.-b", "a-.b"} {
		if res, text := w.send(raw{creds: root, method: "PUT", path: "/" + name}); res.StatusCode != http.StatusBadRequest || !strings.Contains(text, "InvalidBucketName") {
			t.Errorf("%s: got %d %s", name, res.StatusCode, text)
		}
	}
}

func TestAPartIsReadWithItsOwnChecksum(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	m := begin(t, holder, bucket, types.ChecksumAlgorithmSha256)
	sizes := []int{5 * mib, 3}
	var parts []types.CompletedPart
	for i, size := range sizes {
		number := int32(i + 1)
		out, err := holder.UploadPart(t.Context(), &awss3.UploadPartInput{
			Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id, PartNumber: &number, Body: body(strings.Repeat("x", size)), ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
		})
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, types.CompletedPart{PartNumber: &number, ETag: out.ETag, ChecksumSHA256: out.ChecksumSHA256})
	}
	_, err := holder.CompleteMultipartUpload(t.Context(), &awss3.CompleteMultipartUploadInput{
		Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		out, err := holder.GetObject(t.Context(), &awss3.GetObjectInput{Bucket: &bucket, Key: aws.String(invoice), PartNumber: p.PartNumber, ChecksumMode: types.ChecksumModeEnabled})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(readAll(t, out.Body)); got != sizes[*p.PartNumber-1] || out.ChecksumSHA256 == nil || *out.ChecksumSHA256 != *p.ChecksumSHA256 || out.ChecksumType != types.ChecksumTypeComposite {
			t.Errorf("part %d: %d bytes, %v %s", *p.PartNumber, got, out.ChecksumSHA256, out.ChecksumType)
		}
	}
}

//go:build unix

package s3_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

func TestWhatTheHolderPutIsReadBackByAnyCredentials(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	in := &awss3.PutObjectInput{
		Bucket: &bucket, Key: aws.String("1001/a b+ü.txt"), Body: body("hello"), ContentType: aws.String("text/plain"), CacheControl: aws.String("no-cache"),
		Metadata: map[string]string{"colour": "blue"}, ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
	}
	made, err := holder.PutObject(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if *made.ETag != `"5d41402abc4b2a76b9719d911017c592"` {
		t.Errorf("ETag %s is not the MD5", *made.ETag)
	}
	out, err := w.root().GetObject(t.Context(), &awss3.GetObjectInput{Bucket: &bucket, Key: in.Key, ChecksumMode: types.ChecksumModeEnabled})
	if err != nil {
		t.Fatal(err)
	}
	if data := readAll(t, out.Body); data != "hello" {
		t.Errorf("got %q", data)
	}
	if *out.ETag != *made.ETag || *out.ContentType != "text/plain" || *out.CacheControl != "no-cache" || out.Metadata["colour"] != "blue" ||
		*out.ContentLength != 5 || aws.ToString(out.ChecksumSHA256) == "" {
		t.Errorf("got %+v", out)
	}
	head, err := holder.HeadObject(t.Context(), &awss3.HeadObjectInput{Bucket: &bucket, Key: in.Key})
	if err != nil {
		t.Fatal(err)
	}
	if *head.ContentLength != 5 || *head.ETag != *made.ETag {
		t.Errorf("got %+v", head)
	}
	if n := w.count("SELECT count(*) FROM objects.versions WHERE resource = 'orders/1001' AND token = 5 AND invocation_id IS NOT NULL"); n != 1 {
		t.Errorf("%d versions record who wrote them, want 1", n)
	}
}

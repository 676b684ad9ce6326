//go:build unix

package s3_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

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

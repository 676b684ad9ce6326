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

// copyPart copies the source in in into a part.
func (m *multi) copyPart(c *awss3.Client, number int32, in awss3.UploadPartCopyInput) (*awss3.UploadPartCopyOutput, error) {
	in.Bucket, in.Key, in.UploadId, in.PartNumber = &m.bucket, aws.String(invoice), m.id, &number
	return c.UploadPartCopy(m.t.Context(), &in)
}

func TestACopiedPartIsAReadOfAnySourceAndAFencedWrite(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	other := w.lease("orders/1002", 3)
	source := strings.Repeat("0123456789", 600_000)
	put(t, other, bucket, "1002/source ü", source)
	empty := *put(t, other, bucket, "1002/empty", "").ETag
	holder := w.lease("orders/1001", 5)
	m := begin(t, holder, bucket, types.ChecksumAlgorithmCrc32c)
	from := func(text string) awss3.UploadPartCopyInput {
		in := awss3.UploadPartCopyInput{CopySource: aws.String("orders/1002/source%20%C3%BC")}
		if text != "" {
			in.CopySourceRange = &text
		}
		return in
	}
	want := ""
	for i, c := range []struct{ text, want string }{{"bytes=7-5242892", source[7:5242893]}, {"", source}, {"bytes=0-0", "0"}} {
		number := int32(i + 1)
		out, err := m.copyPart(holder, number, from(c.text))
		if err != nil {
			t.Fatal(err)
		}
		if r := out.CopyPartResult; *r.ETag != etagOf(c.want) || r.ChecksumCRC32C == nil || r.LastModified == nil {
			t.Errorf("%s: got %+v", c.text, r)
		}
		m.parts = append(m.parts, types.CompletedPart{PartNumber: &number, ETag: out.CopyPartResult.ETag})
		want += c.want
	}
	for _, bad := range []string{"bytes=5-", "bytes=-5", "bytes=0-6000000", "bytes=6000000-6000001", "bytes=9-3", "bytes", "0-3", "bytes=a-b", "bytes=0-1,3-4"} {
		_, err := m.copyPart(holder, 9, from(bad))
		t.Log(bad)
		wantRefused(t, err, 400, "InvalidArgument")
	}
	missing, unmet := from(""), from("")
	missing.CopySource = aws.String("orders/1002/nothing")
	_, err := m.copyPart(holder, 9, missing)
	wantRefused(t, err, 404, "NoSuchKey")
	missing.CopySource = aws.String("nowhere/1002/nothing")
	_, err = m.copyPart(holder, 9, missing)
	wantRefused(t, err, 404, "NoSuchBucket")
	unmet.CopySourceIfMatch = &empty
	_, err = m.copyPart(holder, 9, unmet)
	wantRefused(t, err, 412, "PreconditionFailed")
	_, err = m.copyPart(w.root(), 9, from(""))
	wantRefused(t, err, 403, "MissingFencingToken")
	_, err = m.copyPart(other, 9, from(""))
	wantRefused(t, err, 403, "WrongFencingResource")
	if n := w.count("SELECT count(*) FROM objects.parts"); n != 3 {
		t.Errorf("%d parts are stored, want 3", n)
	}
	if _, err := m.complete(holder, m.parts); err != nil {
		t.Fatal(err)
	}
	if got := get(t, w.root(), bucket, invoice); got != want {
		t.Errorf("the object holds %d bytes, want %d", len(got), len(want))
	}
	w.arm("orders/1001", 6)
	m = begin(t, w.holder("orders/1001", 6), bucket, "")
	_, err = m.copyPart(holder, 1, from(""))
	wantRefused(t, err, 412, "StaleFencingToken", "5", "6")
	if n := w.pending(); n != 0 {
		t.Errorf("%d blobs are pending", n)
	}
}

func TestAFullObjectChecksumIsThatOfTheWholeBytes(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	first, second := bytes.Repeat([]byte("a"), 5*mib), []byte("the second part")
	for _, algo := range []types.ChecksumAlgorithm{types.ChecksumAlgorithmCrc32, types.ChecksumAlgorithmCrc32c, types.ChecksumAlgorithmCrc64nvme} {
		whole, err := holder.PutObject(t.Context(), &awss3.PutObjectInput{
			Bucket: &bucket, Key: aws.String("1001/whole"), Body: bytes.NewReader(append(bytes.Clone(first), second...)), ChecksumAlgorithm: algo,
		})
		if err != nil {
			t.Fatal(err)
		}
		out, err := holder.CreateMultipartUpload(t.Context(), &awss3.CreateMultipartUploadInput{
			Bucket: &bucket, Key: aws.String(invoice), ChecksumAlgorithm: algo, ChecksumType: types.ChecksumTypeFullObject,
		})
		if err != nil {
			t.Fatal(err)
		}
		if out.ChecksumType != types.ChecksumTypeFullObject || out.ChecksumAlgorithm != algo {
			t.Errorf("begun as %s %s", out.ChecksumAlgorithm, out.ChecksumType)
		}
		m := &multi{t: t, c: holder, id: out.UploadId, bucket: bucket}
		m.part(1, first)
		m.part(2, second)
		listed, err := holder.ListParts(t.Context(), &awss3.ListPartsInput{Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id})
		if err != nil || listed.ChecksumType != types.ChecksumTypeFullObject {
			t.Errorf("listed: %+v, %v", listed, err)
		}
		in := &awss3.CompleteMultipartUploadInput{
			Bucket: &bucket, Key: aws.String(invoice), UploadId: m.id, MultipartUpload: &types.CompletedMultipartUpload{Parts: m.parts},
			ChecksumType: types.ChecksumTypeComposite,
		}
		_, err = holder.CompleteMultipartUpload(t.Context(), in)
		wantRefused(t, err, 400, "InvalidRequest")
		in.ChecksumType = types.ChecksumTypeFullObject
		in.ChecksumCRC32, in.ChecksumCRC32C, in.ChecksumCRC64NVME = wrongSum(whole.ChecksumCRC32), wrongSum(whole.ChecksumCRC32C), wrongSum(whole.ChecksumCRC64NVME)
		_, err = holder.CompleteMultipartUpload(t.Context(), in)
		wantRefused(t, err, 400, "BadDigest")
		in.ChecksumCRC32, in.ChecksumCRC32C, in.ChecksumCRC64NVME = whole.ChecksumCRC32, whole.ChecksumCRC32C, whole.ChecksumCRC64NVME
		done, err := holder.CompleteMultipartUpload(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := sumsOf(done.ChecksumCRC32, done.ChecksumCRC32C, done.ChecksumCRC64NVME), sumsOf(whole.ChecksumCRC32, whole.ChecksumCRC32C, whole.ChecksumCRC64NVME); got != want || done.ChecksumType != types.ChecksumTypeFullObject {
			t.Errorf("%s: got %s %s, want %s", algo, done.ChecksumType, got, want)
		}
	}
	for _, bad := range []awss3.CreateMultipartUploadInput{
		{ChecksumAlgorithm: types.ChecksumAlgorithmSha256, ChecksumType: types.ChecksumTypeFullObject},
		{ChecksumAlgorithm: types.ChecksumAlgorithmCrc64nvme, ChecksumType: types.ChecksumTypeComposite},
		{ChecksumType: types.ChecksumTypeFullObject},
	} {
		bad.Bucket, bad.Key = &bucket, aws.String(invoice)
		_, err := holder.CreateMultipartUpload(t.Context(), &bad)
		wantRefused(t, err, 400, "InvalidRequest")
	}
}

// wrongSum returns a checksum of other bytes.
func wrongSum(sum *string) *string {
	if sum == nil {
		return nil
	}
	return aws.String("AAAA" + (*sum)[4:])
}

func sumsOf(sums ...*string) string {
	text := ""
	for _, s := range sums {
		text += aws.ToString(s) + ";"
	}
	return text
}

func TestAttributesShowSizeChecksumAndParts(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	all := []types.ObjectAttributes{
		types.ObjectAttributesEtag, types.ObjectAttributesChecksum, types.ObjectAttributesObjectParts, types.ObjectAttributesObjectSize, types.ObjectAttributesStorageClass,
	}
	ask := func(key string, limit int32, marker string) *awss3.GetObjectAttributesOutput {
		t.Helper()
		out, err := w.root().GetObjectAttributes(t.Context(), &awss3.GetObjectAttributesInput{
			Bucket: &bucket, Key: &key, ObjectAttributes: all, MaxParts: &limit, PartNumberMarker: &marker,
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	_, err := holder.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: aws.String("1001/plain"), Body: body("hello"), ChecksumAlgorithm: types.ChecksumAlgorithmCrc32})
	if err != nil {
		t.Fatal(err)
	}
	plain := ask("1001/plain", 1000, "0")
	if *plain.ETag != strings.Trim(etagOf("hello"), `"`) || *plain.ObjectSize != 5 || plain.ObjectParts != nil || plain.Checksum == nil ||
		plain.Checksum.ChecksumType != types.ChecksumTypeFullObject || plain.StorageClass != types.StorageClassStandard {
		t.Errorf("plain: %+v", plain)
	}
	m := begin(t, holder, bucket, types.ChecksumAlgorithmSha256)
	m.part(1, bytes.Repeat([]byte("a"), 5*mib))
	m.part(2, bytes.Repeat([]byte("b"), 5*mib))
	m.part(3, []byte("tail"))
	if _, err := m.complete(holder, m.parts); err != nil {
		t.Fatal(err)
	}
	page := ask(invoice, 2, "0").ObjectParts
	if *page.TotalPartsCount != 3 || !*page.IsTruncated || len(page.Parts) != 2 || *page.NextPartNumberMarker != "2" || page.Parts[1].ChecksumSHA256 == nil || *page.Parts[0].Size != 5*mib {
		t.Errorf("first page: %+v", page)
	}
	page = ask(invoice, 2, "2").ObjectParts
	if *page.IsTruncated || len(page.Parts) != 1 || *page.Parts[0].PartNumber != 3 || *page.Parts[0].Size != 4 {
		t.Errorf("second page: %+v", page)
	}
	m = begin(t, holder, bucket, "")
	m.part(1, []byte("x"))
	if _, err := m.complete(holder, m.parts); err != nil {
		t.Fatal(err)
	}
	if page = ask(invoice, 1000, "0").ObjectParts; *page.TotalPartsCount != 1 || len(page.Parts) != 1 || *page.Parts[0].Size != 1 || page.Parts[0].ChecksumCRC32 != nil {
		t.Errorf("without checksums: %+v", page)
	}
	_, err = w.root().GetObjectAttributes(t.Context(), &awss3.GetObjectAttributesInput{Bucket: &bucket, Key: aws.String("1001/none"), ObjectAttributes: all})
	wantRefused(t, err, 404, "NoSuchKey")
	for _, c := range []struct{ value, code string }{{"", "InvalidRequest"}, {"Colour", "InvalidArgument"}} {
		res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: "GET", path: "/orders/" + invoice + "?attributes=", header: map[string]string{"X-Amz-Object-Attributes": c.value}})
		if res.StatusCode != http.StatusBadRequest || !strings.Contains(text, c.code) {
			t.Errorf("%q: got %d %s", c.value, res.StatusCode, text)
		}
	}
}

func TestUploadsUnderWayAreListedAsFolders(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	ids := map[string][]string{}
	for _, key := range []string{"1001/a", "1001/a", "1001/b/1", "1001/b/2", "1001/b ü/3", "1001/c"} {
		out, err := holder.CreateMultipartUpload(t.Context(), &awss3.CreateMultipartUploadInput{Bucket: &bucket, Key: &key})
		if err != nil {
			t.Fatal(err)
		}
		ids[key] = append(ids[key], *out.UploadId)
	}
	list := func(in awss3.ListMultipartUploadsInput) string {
		t.Helper()
		in.Bucket = &bucket
		text := ""
		for {
			out, err := holder.ListMultipartUploads(t.Context(), &in)
			if err != nil {
				t.Fatal(err)
			}
			for _, u := range out.Uploads {
				text += *u.Key + " "
			}
			for _, p := range out.CommonPrefixes {
				text += "[" + *p.Prefix + "] "
			}
			if !*out.IsTruncated {
				return strings.TrimSpace(text)
			}
			text += "| "
			in.KeyMarker, in.UploadIdMarker = out.NextKeyMarker, out.NextUploadIdMarker
		}
	}
	for _, c := range []struct {
		in   awss3.ListMultipartUploadsInput
		want string
	}{
		{awss3.ListMultipartUploadsInput{}, "1001/a 1001/a 1001/b ü/3 1001/b/1 1001/b/2 1001/c"},
		{awss3.ListMultipartUploadsInput{MaxUploads: aws.Int32(1)}, "1001/a | 1001/a | 1001/b ü/3 | 1001/b/1 | 1001/b/2 | 1001/c"},
		{awss3.ListMultipartUploadsInput{Delimiter: aws.String("/")}, "[1001/]"},
		{awss3.ListMultipartUploadsInput{Delimiter: aws.String("/"), Prefix: aws.String("1001/")}, "1001/a 1001/a 1001/c [1001/b ü/] [1001/b/]"},
		{awss3.ListMultipartUploadsInput{Delimiter: aws.String("/"), Prefix: aws.String("1001/"), MaxUploads: aws.Int32(2)}, "1001/a 1001/a | [1001/b ü/] [1001/b/] | 1001/c"},
		{awss3.ListMultipartUploadsInput{Delimiter: aws.String("/"), Prefix: aws.String("1001/b"), MaxUploads: aws.Int32(1)}, "[1001/b ü/] | [1001/b/]"},
		{awss3.ListMultipartUploadsInput{KeyMarker: aws.String("1001/a")}, "1001/b ü/3 1001/b/1 1001/b/2 1001/c"},
		{awss3.ListMultipartUploadsInput{KeyMarker: aws.String("1001/a"), UploadIdMarker: &ids["1001/a"][0]}, "1001/a 1001/b ü/3 1001/b/1 1001/b/2 1001/c"},
		{awss3.ListMultipartUploadsInput{Prefix: aws.String("1002")}, ""},
		{awss3.ListMultipartUploadsInput{MaxUploads: aws.Int32(0)}, ""},
	} {
		if got := list(c.in); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.in, got, c.want)
		}
	}
	out, err := holder.ListMultipartUploads(t.Context(), &awss3.ListMultipartUploadsInput{
		Bucket: &bucket, Delimiter: aws.String("/"), Prefix: aws.String("1001/b"), EncodingType: types.EncodingTypeUrl,
	})
	if err != nil || len(out.CommonPrefixes) != 2 || *out.CommonPrefixes[0].Prefix != "1001/b%20%C3%BC/" {
		t.Errorf("encoded: %+v, %v", out, err)
	}
	_, err = holder.ListMultipartUploads(t.Context(), &awss3.ListMultipartUploadsInput{Bucket: &bucket, KeyMarker: aws.String("1001/a"), UploadIdMarker: aws.String("x")})
	wantRefused(t, err, 400, "InvalidArgument")
	_, err = holder.ListMultipartUploads(t.Context(), &awss3.ListMultipartUploadsInput{Bucket: aws.String("nowhere")})
	wantRefused(t, err, 404, "NoSuchBucket")
}

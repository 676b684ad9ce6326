//go:build unix

package s3_test

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
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
	if *made.ETag != etagOf("hello") {
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

func etagOf(data string) string {
	sum := md5.Sum([]byte(data))
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func TestRangesAndConditionsOfReads(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "0123456789")
	read := func(in awss3.GetObjectInput) (string, string, error) {
		in.Bucket, in.Key = &bucket, aws.String(invoice)
		out, err := w.root().GetObject(t.Context(), &in)
		if err != nil {
			return "", "", err
		}
		return readAll(t, out.Body), aws.ToString(out.ContentRange), nil
	}
	for wanted, want := range map[string][2]string{
		"bytes=2-4": {"234", "bytes 2-4/10"}, "bytes=7-": {"789", "bytes 7-9/10"}, "bytes=-3": {"789", "bytes 7-9/10"},
		"bytes=0-99": {"0123456789", "bytes 0-9/10"}, "bytes=9-9": {"9", "bytes 9-9/10"}, "lines=1-2": {"0123456789", ""},
	} {
		data, contentRange, err := read(awss3.GetObjectInput{Range: &wanted})
		if err != nil || data != want[0] || contentRange != want[1] {
			t.Errorf("%s: got %q %q %v", wanted, data, contentRange, err)
		}
	}
	_, _, err := read(awss3.GetObjectInput{Range: aws.String("bytes=10-")})
	wantRefused(t, err, 416, "InvalidRange")
	_, _, err = read(awss3.GetObjectInput{IfMatch: aws.String(`"other"`)})
	wantRefused(t, err, 412, "PreconditionFailed")
	if _, _, err = read(awss3.GetObjectInput{IfNoneMatch: aws.String(etagOf("0123456789"))}); err == nil || !strings.Contains(err.Error(), "304") {
		t.Errorf("If-None-Match: got %v, want 304", err)
	}
	if data, _, err := read(awss3.GetObjectInput{IfMatch: aws.String(etagOf("0123456789"))}); err != nil || data != "0123456789" {
		t.Errorf("If-Match: got %q %v", data, err)
	}
}

func TestEmptyObjectsAndAwkwardKeys(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	for _, key := range []string{"1001", "1001/", "1001//x", "1001/a?b#c%20&d", "1001/\U0001F512", "1001/" + strings.Repeat("k", 900)} {
		put(t, holder, bucket, key, "")
		if got := get(t, holder, bucket, key); got != "" {
			t.Errorf("%q holds %q", key, got)
		}
	}
}

func TestMissingThingsAreNamed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	_, err := holder.GetObject(t.Context(), &awss3.GetObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
	wantRefused(t, err, 404, "NoSuchKey")
	_, err = holder.HeadObject(t.Context(), &awss3.HeadObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
	wantRefused(t, err, 404, "NotFound")
	_, err = holder.GetObject(t.Context(), &awss3.GetObjectInput{Bucket: aws.String("nowhere"), Key: aws.String(invoice)})
	wantRefused(t, err, 404, "NoSuchBucket")
	_, err = tryPut(t, holder, "nowhere", invoice, "x")
	wantRefused(t, err, 404, "NoSuchBucket")
	_, err = holder.ListObjectsV2(t.Context(), &awss3.ListObjectsV2Input{Bucket: aws.String("nowhere")})
	wantRefused(t, err, 404, "NoSuchBucket")
	_, err = holder.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
	if err != nil {
		t.Errorf("deleting what is not there: %v", err)
	}
}

func TestWhatIsNotThereSaysSoAndIsNotIgnored(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	for name, in := range map[string]*awss3.PutObjectInput{
		"encryption":    {ServerSideEncryption: types.ServerSideEncryptionAes256},
		"ACL":           {ACL: types.ObjectCannedACLPublicRead},
		"storage class": {StorageClass: types.StorageClassGlacier},
		"MD5 checksum":  {ChecksumSHA256: nil, ContentLanguage: aws.String("en"), GrantRead: aws.String("id=x")},
	} {
		in.Bucket, in.Key, in.Body = &bucket, aws.String(invoice), body("x")
		_, err := holder.PutObject(t.Context(), in)
		t.Log(name)
		wantRefused(t, err, 501, "NotImplemented")
	}
	_, err := holder.GetBucketEncryption(t.Context(), &awss3.GetBucketEncryptionInput{Bucket: &bucket})
	wantRefused(t, err, 404, "ServerSideEncryptionConfigurationNotFoundError")
	_, err = w.root().PutBucketVersioning(t.Context(), &awss3.PutBucketVersioningInput{
		Bucket:                  &bucket,
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusSuspended},
	})
	wantRefused(t, err, 501, "NotImplemented")
	w.nothingLeft(0, 0)
}

func TestConditionsOfWritesAreEvaluatedInTheCommit(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	cond := func(data string, ifMatch, ifNoneMatch *string) error {
		_, err := holder.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: aws.String(invoice), Body: body(data), IfMatch: ifMatch, IfNoneMatch: ifNoneMatch})
		return err
	}
	wantRefused(t, cond("x", aws.String(etagOf("one")), nil), 404, "NoSuchKey")
	if err := cond("one", nil, aws.String("*")); err != nil {
		t.Error(err)
	}
	wantRefused(t, cond("x", nil, aws.String("*")), 412, "PreconditionFailed")
	wantRefused(t, cond("x", aws.String(etagOf("two")), nil), 412, "PreconditionFailed")
	if err := cond("two", aws.String(etagOf("one")), nil); err != nil {
		t.Error(err)
	}
	_, err := holder.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice), IfMatch: aws.String(etagOf("one"))})
	wantRefused(t, err, 412, "PreconditionFailed")
	if got := get(t, holder, bucket, invoice); got != "two" {
		t.Errorf("the object holds %q", got)
	}
	w.nothingLeft(2, 2)
}

func TestExactlyOneOfManyConcurrentCreatesWins(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	const n = 64
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			_, errs[i] = holder.PutObject(t.Context(), &awss3.PutObjectInput{
				Bucket: &bucket, Key: aws.String(invoice),
				Body: body(fmt.Sprintf("%064d", i)), IfNoneMatch: aws.String("*"),
			})
		})
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		if err == nil {
			if won >= 0 {
				t.Errorf("both %d and %d won", won, i)
			}
			won = i
			continue
		}
		wantRefused(t, err, 412, "PreconditionFailed")
	}
	if got := get(t, holder, bucket, invoice); got != fmt.Sprintf("%064d", won) {
		t.Errorf("%d won, but the object holds %s", won, got)
	}
	w.nothingLeft(1, 1)
}

func TestConcurrentPutsLeaveOneOfThemWhole(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			if _, err := tryPut(t, holder, bucket, invoice, strings.Repeat(string(rune('a'+i)), 100_000)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got := get(t, holder, bucket, invoice)
	if len(got) != 100_000 || strings.Count(got, got[:1]) != len(got) {
		t.Errorf("the object is a mixture of %d bytes", len(got))
	}
	if n := w.count("SELECT count(*) FROM objects.blobs WHERE state = 'live'"); n != 1 {
		t.Errorf("%d blobs are live, want 1", n)
	}
	if n := w.count("SELECT count(*) FROM objects.blobs WHERE state = 'superseded'"); n != 23 {
		t.Errorf("%d blobs are superseded, want 23", n)
	}
}

func TestADigestThatDoesNotFitIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	sum := md5.Sum([]byte("other"))
	for header, want := range map[string][2]string{
		"Content-Md5":           {base64.StdEncoding.EncodeToString(sum[:]), "BadDigest"},
		"X-Amz-Checksum-Sha256": {base64.StdEncoding.EncodeToString(make([]byte, 32)), "BadDigest"},
		"X-Amz-Checksum-Crc32":  {base64.StdEncoding.EncodeToString(make([]byte, 4)), "BadDigest"},
	} {
		res, text := w.send(raw{
			creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: body("data"), size: 4,
			header: map[string]string{header: want[0]},
		})
		if res.StatusCode != http.StatusBadRequest || !strings.Contains(text, want[1]) {
			t.Errorf("%s: got %d %s", header, res.StatusCode, text)
		}
	}
	w.nothingLeft(0, 0)
}

func TestDeletionIsOrdinaryForTheHolder(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "x")
	if _, err := holder.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice)}); err != nil {
		t.Fatal(err)
	}
	_, err := holder.GetObject(t.Context(), &awss3.GetObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
	wantRefused(t, err, 404, "NoSuchKey")
	if n := w.count("SELECT count(*) FROM objects.blobs WHERE state = 'superseded'"); n != 1 {
		t.Errorf("%d blobs are superseded, want 1", n)
	}
	put(t, holder, bucket, invoice, "again")
	if got := get(t, holder, bucket, invoice); got != "again" {
		t.Errorf("the object holds %q", got)
	}
}

func TestRootManagesBucketsAndNobodyElse(t *testing.T) {
	t.Parallel()
	w := setup(t)
	root, holder := w.root(), w.lease("orders/1001", 5)
	_, err := holder.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: aws.String("orders")})
	wantRefused(t, err, 403, "AccessDenied")
	for _, name := range []string{"orders", "reports", "abc"} {
		if _, err := root.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: &name}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = holder.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: aws.String("orders")})
	wantRefused(t, err, 409, "BucketAlreadyOwnedByYou") // so that clients that create it before each upload continue
	_, err = root.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: aws.String("NotAName")})
	wantRefused(t, err, 400, "InvalidBucketName")
	list, err := root.ListBuckets(t.Context(), &awss3.ListBucketsInput{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, b := range list.Buckets {
		names = append(names, *b.Name)
	}
	if !slices.Equal(names, []string{"abc", "orders", "reports"}) {
		t.Errorf("got %v", names)
	}
	if _, err := holder.HeadBucket(t.Context(), &awss3.HeadBucketInput{Bucket: aws.String("orders")}); err != nil {
		t.Error(err)
	}
	put(t, holder, "orders", invoice, "x")
	_, err = root.DeleteBucket(t.Context(), &awss3.DeleteBucketInput{Bucket: aws.String("orders")})
	wantRefused(t, err, 409, "BucketNotEmpty")
	_, err = holder.DeleteBucket(t.Context(), &awss3.DeleteBucketInput{Bucket: aws.String("abc")})
	wantRefused(t, err, 403, "AccessDenied")
	if _, err := root.DeleteBucket(t.Context(), &awss3.DeleteBucketInput{Bucket: aws.String("abc")}); err != nil {
		t.Error(err)
	}
	_, err = root.HeadBucket(t.Context(), &awss3.HeadBucketInput{Bucket: aws.String("abc")})
	wantRefused(t, err, 404, "NotFound")
}

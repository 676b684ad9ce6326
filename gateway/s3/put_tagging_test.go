//go:build unix

package s3_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/gateway/blob"
)

// tags returns an object's tags, sorted.
func tags(t *testing.T, c *awss3.Client, bucket, key string) string {
	t.Helper()
	out, err := c.GetObjectTagging(t.Context(), &awss3.GetObjectTaggingInput{Bucket: &bucket, Key: &key})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, tag := range out.TagSet {
		all = append(all, *tag.Key+"="+*tag.Value)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func putTags(t *testing.T, c *awss3.Client, bucket, key string, pairs ...string) error {
	t.Helper()
	set := []types.Tag{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		set = append(set, types.Tag{Key: &name, Value: &value})
	}
	_, err := c.PutObjectTagging(t.Context(), &awss3.PutObjectTaggingInput{Bucket: &bucket, Key: &key, Tagging: &types.Tagging{TagSet: set}})
	return err
}

func TestTagsAreAFencedWriteAndMakeNoVersion(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	_, err := holder.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: aws.String(invoice), Body: body("data"), Tagging: aws.String("a=1&b=two%20words")})
	if err != nil {
		t.Fatal(err)
	}
	if got := tags(t, w.root(), bucket, invoice); got != "a=1 b=two words" {
		t.Errorf("put with tags: got %q", got)
	}
	out, err := holder.GetObject(t.Context(), getInput(bucket, invoice))
	if err != nil || aws.ToInt32(out.TagCount) != 2 || readAll(t, out.Body) != "data" {
		t.Errorf("got %+v, %v", out, err)
	}
	if err := putTags(t, holder, bucket, invoice, "c=ü"); err != nil {
		t.Fatal(err)
	}
	if got := tags(t, w.root(), bucket, invoice); got != "c=ü" {
		t.Errorf("got %q", got)
	}
	copied := &awss3.CopyObjectInput{Bucket: &bucket, Key: aws.String("1001/copy"), CopySource: aws.String("orders/" + invoice)}
	if _, err := holder.CopyObject(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	if got := tags(t, w.root(), bucket, "1001/copy"); got != "c=ü" {
		t.Errorf("copied: got %q", got)
	}
	copied.TaggingDirective, copied.Tagging = types.TaggingDirectiveReplace, aws.String("d=4")
	if _, err := holder.CopyObject(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	if got := tags(t, w.root(), bucket, "1001/copy"); got != "d=4" {
		t.Errorf("copied with other tags: got %q", got)
	}
	up, err := holder.CreateMultipartUpload(t.Context(), &awss3.CreateMultipartUploadInput{Bucket: &bucket, Key: aws.String(invoice), Tagging: aws.String("e=5")})
	if err != nil {
		t.Fatal(err)
	}
	m := &multi{t: t, c: holder, id: up.UploadId, bucket: bucket}
	m.part(1, []byte("part"))
	if _, err := m.complete(holder, m.parts); err != nil {
		t.Fatal(err)
	}
	if got := tags(t, w.root(), bucket, invoice); got != "e=5" {
		t.Errorf("multipart: got %q", got)
	}
	versions := w.count("SELECT count(*) FROM objects.versions")
	if _, err := holder.DeleteObjectTagging(t.Context(), &awss3.DeleteObjectTaggingInput{Bucket: &bucket, Key: aws.String(invoice)}); err != nil {
		t.Fatal(err)
	}
	if got := tags(t, w.root(), bucket, invoice); got != "" {
		t.Errorf("deleted: got %q", got)
	}
	if n := w.count("SELECT count(*) FROM objects.versions"); n != versions {
		t.Errorf("changing tags made %d versions", n-versions)
	}
	w.refuseStaleTags(bucket, holder)
}

func (w *world) refuseStaleTags(bucket string, holder *awss3.Client) {
	t := w.t
	t.Helper()
	before := tags(t, w.root(), bucket, "1001/copy")
	wantRefused(t, putTags(t, w.root(), bucket, "1001/copy", "x=y"), 403, "MissingFencingToken")
	wantRefused(t, putTags(t, w.lease("orders/1002", 1), bucket, "1001/copy", "x=y"), 403, "WrongFencingResource")
	w.arm("orders/1001", 6)
	wantRefused(t, putTags(t, holder, bucket, "1001/copy", "x=y"), 412, "StaleFencingToken", "5", "6")
	_, err := holder.DeleteObjectTagging(t.Context(), &awss3.DeleteObjectTaggingInput{Bucket: &bucket, Key: aws.String("1001/copy")})
	wantRefused(t, err, 412, "StaleFencingToken")
	if got := tags(t, w.root(), bucket, "1001/copy"); got != before {
		t.Errorf("a refused change left %q", got)
	}
}

func TestBadTagsChangeNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "data")
	var eleven []string
	for i := range 11 {
		eleven = append(eleven, fmt.Sprintf("k%d=v", i))
	}
	wantRefused(t, putTags(t, holder, bucket, invoice, eleven...), 400, "BadRequest")
	wantRefused(t, putTags(t, holder, bucket, invoice, "a=1", "a=2"), 400, "InvalidTag")
	wantRefused(t, putTags(t, holder, bucket, invoice, strings.Repeat("k", 129)+"=v"), 400, "InvalidTag")
	wantRefused(t, putTags(t, holder, bucket, invoice, "k="+strings.Repeat("v", 257)), 400, "InvalidTag")
	wantRefused(t, putTags(t, holder, bucket, "1001/none", "a=1"), 404, "NoSuchKey")
	_, err := holder.GetObjectTagging(t.Context(), &awss3.GetObjectTaggingInput{Bucket: &bucket, Key: aws.String("1001/none")})
	wantRefused(t, err, 404, "NoSuchKey")
	for _, header := range []string{strings.Join(eleven, "&"), "a=%zz", "=v", "a=1&a=2"} {
		_, err = holder.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: aws.String(invoice), Body: body("x"), Tagging: &header})
		code := "InvalidArgument"
		if header[0] == 'k' {
			code = "BadRequest"
		}
		wantRefused(t, err, 400, code)
	}
	for _, document := range []string{"", "<Tagging>", "no XML"} {
		res, text := w.send(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice + "?tagging=", body: body(document), size: int64(len(document))})
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: got %d %s", document, res.StatusCode, text)
		}
	}
	if got := tags(t, w.root(), bucket, invoice); got != "" {
		t.Errorf("got %q", got)
	}
	w.nothingLeft(1, 1)
}

// A late first attempt of an earlier change must not undo a later change.
func TestALateChangeOfTagsIsRecognised(t *testing.T) {
	t.Parallel()
	for name, hit := range map[string]fault{"reply lost": loseReply, "request lost": loseRequest, "request delayed": delayRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &faulty{}
			w := setup(t, throughFaulty(t, f))
			bucket := w.bucket()
			holder := w.lease("orders/1001", 5)
			put(t, holder, bucket, invoice, "data")
			f.strike("objects.put_tags", false, hit)
			if err := putTags(t, holder, bucket, invoice, "a=1"); err != nil || f.left() != 0 {
				t.Errorf("got %v; %d faults left", err, f.left())
			}
			if err := putTags(t, holder, bucket, invoice, "a=2"); err != nil {
				t.Fatal(err)
			}
			if f.delayed != nil {
				f.delayed()
			}
			if got := tags(t, holder, bucket, invoice); got != "a=2" {
				t.Errorf("got %q", got)
			}
			// Another attempt of one request, through another replica.
			document := func(value string) string {
				return "<Tagging><TagSet><Tag><Key>a</Key><Value>" + value + "</Value></Tag></TagSet></Tagging>"
			}
			r := raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice + "?tagging=", invocation: blob.NewID().String()}
			for _, value := range []string{"3", "4", "3"} {
				r.body, r.size = body(document(value)), int64(len(document(value)))
				if value == "4" {
					if err := putTags(t, holder, bucket, invoice, "a=4"); err != nil {
						t.Fatal(err)
					}
					continue
				}
				if res, text := w.send(r); res.StatusCode != http.StatusOK {
					t.Fatalf("got %d %s", res.StatusCode, text)
				}
			}
			if got := tags(t, holder, bucket, invoice); got != "a=4" {
				t.Errorf("after a late attempt: got %q", got)
			}
		})
	}
}

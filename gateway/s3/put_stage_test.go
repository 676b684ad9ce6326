//go:build unix

package s3_test

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

// staging makes an SDK's client stage its uploads.
func staging(o *awss3.Options) {
	o.APIOptions = append(o.APIOptions, smithyhttp.AddHeaderValue("Fencing-Stage", "true"))
}

func stageOf(t *testing.T, m middleware.Metadata) string {
	t.Helper()
	res, ok := awsmiddleware.GetRawResponse(m).(*smithyhttp.Response)
	if !ok || len(res.Header.Get("Fencing-Stage")) != 32 {
		t.Fatalf("the answer names no stage: %v", res)
	}
	return res.Header.Get("Fencing-Stage")
}

// sealed arms with a seal, which SQL presents.
func (w *world) sealed(resource string, token fence.Token) fence.Grant {
	w.t.Helper()
	g := fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()}
	w.armHash(resource, token, g.Seal.Hash())
	return g
}

// publish publishes stages as a writer does.
func (w *world) publish(g fence.Grant, stages ...string) error {
	return pgx.BeginFunc(w.t.Context(), poolOf(w.t, w.pg.WriterURL), func(tx pgx.Tx) error {
		_, err := tx.Exec(w.t.Context(), "SELECT fence.use($1::text, $2::text)", g.Resource, g.Presented())
		if err == nil {
			_, err = tx.Exec(w.t.Context(), "SELECT fence.publish_all($1::text[]::uuid[])", stages)
		}
		return err
	})
}

// absent checks that a key does not exist for any reader.
func (w *world) absent(bucket, key string) {
	w.t.Helper()
	c := w.root()
	_, err := c.HeadObject(w.t.Context(), &awss3.HeadObjectInput{Bucket: &bucket, Key: &key})
	wantRefused(w.t, err, 404, "NotFound")
	out, err := c.ListObjectVersions(w.t.Context(), &awss3.ListObjectVersionsInput{Bucket: &bucket, Prefix: &key})
	if err != nil || len(out.Versions) > 0 {
		w.t.Errorf("%d versions are listed, %v", len(out.Versions), err)
	}
	list, err := c.ListObjectsV2(w.t.Context(), &awss3.ListObjectsV2Input{Bucket: &bucket, Prefix: &key})
	if err != nil || len(list.Contents) > 0 {
		w.t.Errorf("%d objects are listed, %v", len(list.Contents), err)
	}
}

func TestAStagedUploadIsSeenWhenItIsPublishedAndWhole(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	g := w.sealed("orders/1001", 5)
	c := w.holder(g.Resource, g.Token)
	out, err := c.PutObject(t.Context(), &awss3.PutObjectInput{
		Bucket: &bucket, Key: aws.String(invoice), Body: strings.NewReader("the text"), ContentType: aws.String("text/plain"), CacheControl: aws.String("no-store"),
		Metadata: map[string]string{"colour": "blue"}, Tagging: aws.String("a=1&b=2"), ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
	}, staging)
	if err != nil {
		t.Fatal(err)
	}
	if out.VersionId != nil || *out.ETag != etagOf("the text") || out.ChecksumSHA256 == nil {
		t.Errorf("the answer is %+v", out)
	}
	w.absent(bucket, invoice)
	if err := w.publish(g, stageOf(t, out.ResultMetadata)); err != nil {
		t.Fatal(err)
	}
	in := getInput(bucket, invoice)
	in.ChecksumMode = types.ChecksumModeEnabled
	got, err := c.GetObject(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if text := readAll(t, got.Body); text != "the text" || *got.ContentType != "text/plain" || *got.CacheControl != "no-store" || got.Metadata["colour"] != "blue" ||
		*got.TagCount != 2 || *got.ETag != *out.ETag || *got.ChecksumSHA256 != *out.ChecksumSHA256 {
		t.Errorf("%q, %+v", text, got)
	}
	w.liveBlobsAreCurrent()
}

func TestAMultipartUploadIsStagedWhenItIsCompleted(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	g := w.sealed("orders/1001", 5)
	c := w.holder(g.Resource, g.Token, staging) // each of its requests has the header
	m := begin(t, c, bucket, types.ChecksumAlgorithmCrc32)
	m.part(1, bytes.Repeat([]byte("a"), 5*mib))
	m.part(2, []byte("bbbb"))
	m.part(3, []byte("given up"))
	out, err := m.complete(c, m.parts[:2])
	if err != nil {
		t.Fatal(err)
	}
	stage := stageOf(t, out.ResultMetadata)
	if stage != *m.id {
		t.Errorf("the stage is %s, the upload %s", stage, *m.id)
	}
	w.absent(bucket, invoice)
	again, err := m.complete(c, m.parts[:2]) // as if the answer had been lost
	if err != nil || *again.ETag != *out.ETag || stageOf(t, again.ResultMetadata) != stage || *again.ChecksumCRC32 != *out.ChecksumCRC32 {
		t.Errorf("repeated: %+v, %v", again, err)
	}
	_, err = m.complete(c, m.parts[:1]) // another completion
	wantRefused(t, err, 404, "NoSuchUpload")
	_, err = m.complete(w.holder(g.Resource, g.Token), m.parts[:2]) // it would publish at once
	wantRefused(t, err, 404, "NoSuchUpload")
	w.arm("orders/1002", 5)
	_, err = m.complete(w.holder("orders/1002", 5, staging), m.parts[:2])
	wantRefused(t, err, 404, "NoSuchUpload")
	if err := w.publish(g, stage); err != nil {
		t.Fatal(err)
	}
	m.checkReads(*out.ETag, "bbbb")
	w.liveBlobsAreCurrent()
	if n := w.count("SELECT count(*) FROM objects.blobs WHERE state = 'condemned'"); n != 1 {
		t.Errorf("%d parts are given up, want 1", n)
	}
}

func TestACopyIsStaged(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	g := w.sealed("orders/1001", 5)
	c := w.holder(g.Resource, g.Token)
	put(t, c, bucket, "1001/source", "the source")
	out, err := c.CopyObject(t.Context(), &awss3.CopyObjectInput{Bucket: &bucket, Key: aws.String(invoice), CopySource: aws.String(bucket + "/1001/source")}, staging)
	if err != nil {
		t.Fatal(err)
	}
	w.absent(bucket, invoice)
	if err := w.publish(g, stageOf(t, out.ResultMetadata)); err != nil {
		t.Fatal(err)
	}
	if got := get(t, c, bucket, invoice); got != "the source" {
		t.Errorf("the object holds %q", got)
	}
}

func TestTheHeaderIsNeverIgnored(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{All: true}); err != nil {
		t.Fatal(err)
	}
	c := w.lease("orders/1001", 5)
	first := put(t, c, bucket, invoice, "the object")
	put(t, c, bucket, invoice, "the newer object")
	creds := w.issue("orders/1001", 5)
	stage := map[string]string{"Fencing-Stage": "true"}
	upload := raw{creds: creds, method: "PUT", path: "/orders/" + invoice, size: 1}
	for name, r := range map[string]struct {
		raw
		status int
	}{
		"not signed":      {raw{unsigned: stage}, http.StatusForbidden},
		"not true":        {raw{header: map[string]string{"Fencing-Stage": "yes"}}, http.StatusBadRequest},
		"deletion":        {raw{method: "DELETE", header: stage}, http.StatusNotImplemented},
		"tags":            {raw{path: upload.path + "?tagging", header: stage}, http.StatusNotImplemented},
		"deletion of one": {raw{method: "DELETE", path: upload.path + "?versionId=" + *first.VersionId, header: stage}, http.StatusNotImplemented},
		"restoring": {raw{path: upload.path, header: map[string]string{
			"Fencing-Stage": "true", "X-Amz-Copy-Source": "orders/" + invoice + "?versionId=" + *first.VersionId,
		}}, http.StatusNotImplemented},
	} {
		r.creds = creds
		if r.method == "" {
			r.method, r.body, r.size = "PUT", body("x"), 1
		}
		if r.path == "" {
			r.path = upload.path
		}
		switch {
		case strings.HasSuffix(r.path, "?tagging"):
			const tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
			sum := contentMD5(tags)
			r.body, r.size = body(tags), int64(len(tags))
			r.header = map[string]string{"Fencing-Stage": "true", "Content-Md5": sum}
		case r.header["X-Amz-Copy-Source"] != "":
			r.body, r.size = nil, 0
		}
		if res, text := w.send(r.raw); res.StatusCode != r.status {
			t.Errorf("%s: %d, want %d\n%s", name, res.StatusCode, r.status, text)
		}
	}
	if got := get(t, c, bucket, invoice); got != "the newer object" {
		t.Errorf("the object holds %q", got)
	}
	w.nothingLeft(2, 2)
	if n := w.count("SELECT count(*) FROM objects.stages") + w.count("SELECT count(*) FROM objects.taggings"); n != 0 {
		t.Errorf("%d were recorded", n)
	}
	res, _ := w.send(raw{creds: creds, method: "GET", path: upload.path, header: stage}) // the header does not affect reads
	if res.StatusCode != http.StatusOK {
		t.Errorf("reading: %d", res.StatusCode)
	}
}

func TestAnUploadThatBecomesStaleOnItsWayIsNotStaged(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 7)
	slow := newHalf(3 << 20)
	done := w.async(raw{
		creds: w.issue("orders/1001", 7), method: "PUT", path: "/orders/" + invoice, body: slow, size: 3 << 20, header: map[string]string{"Fencing-Stage": "true"},
	})
	w.underWay(slow)
	w.arm("orders/1001", 8)
	close(slow.resume)
	if a := <-done; a.status != 412 || !strings.Contains(a.body, "StaleFencingToken") {
		t.Errorf("got %+v", a)
	}
	w.nothingLeft(0, 0)
}

func TestStagedUploadsAreListed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	g := w.sealed("orders/1001", 5)
	var ids []string
	for _, key := range []string{"1001/b", "1001/a", "1001/c"} {
		out, err := tryPut(t, w.holder(g.Resource, g.Token), bucket, key, key+"!", staging)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, stageOf(t, out.ResultMetadata))
	}
	catalog := objects.NewCatalog(objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0))
	list := func(prefix, after string, limit int, want ...string) {
		t.Helper()
		found, err := catalog.Staged(t.Context(), bucket, prefix, after, limit)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range found {
			if s.Bucket != bucket || s.Size != 7 || s.Token != 5 || s.Resource != g.Resource || `"`+s.ETag+`"` != etagOf(s.Key+"!") || s.Modified.IsZero() {
				t.Errorf("got %+v", s)
			}
			got = append(got, s.ID)
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("listed %v, want %v", got, want)
		}
	}
	list("", "", 10, ids...)
	list("1001/a", "", 10, ids[1])
	list("", "", 2, ids[:2]...)
	list("", ids[1], 10, ids[2])
	if err := w.publish(g, ids[2], ids[0]); err != nil { // two keys of one grant
		t.Fatal(err)
	}
	if got := get(t, w.root(), bucket, "1001/b") + get(t, w.root(), bucket, "1001/c"); got != "1001/b!1001/c!" {
		t.Errorf("the objects hold %q", got)
	}
	list("", "", 10, ids[1])
	w.age("25 hours")
	if _, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{}); err != nil {
		t.Error(err)
	}
	list("", "", 10)
	if _, err := catalog.Staged(t.Context(), "nowhere", "", "", 10); err == nil {
		t.Error("a bucket that is not there was listed")
	}
	if _, err := catalog.Staged(t.Context(), bucket, "", "x", 10); err == nil {
		t.Error("after an id that is none")
	}
}

func contentMD5(s string) string {
	sum := md5.Sum([]byte(s))
	return base64.StdEncoding.EncodeToString(sum[:])
}

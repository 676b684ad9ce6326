//go:build unix

package s3_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

// keeping makes the bucket keep older versions.
func (w *world) keeping(k objects.Keep) string {
	w.t.Helper()
	bucket := w.bucket()
	if err := w.srv.Catalog().SetKeep(w.t.Context(), bucket, k); err != nil {
		w.t.Fatal(err)
	}
	return bucket
}

// versions lists a bucket's versions: key:size, with * for the latest and D for a deletion.
func versions(t *testing.T, c *awss3.Client, in awss3.ListObjectVersionsInput) string {
	t.Helper()
	type row struct{ key, text, id string }
	var all []string
	for {
		out, err := c.ListObjectVersions(t.Context(), &in)
		if err != nil {
			t.Fatal(err)
		}
		var rows []row
		for _, v := range out.Versions {
			rows = append(rows, row{*v.Key, fmt.Sprintf("%s:%d%s", *v.Key, *v.Size, star(*v.IsLatest)), *v.VersionId})
		}
		for _, v := range out.DeleteMarkers {
			rows = append(rows, row{*v.Key, fmt.Sprintf("%s:D%s", *v.Key, star(*v.IsLatest)), *v.VersionId})
		}
		// Ids increase with time.
		slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.key+b.id, b.key+a.id) })
		for _, r := range rows {
			all = append(all, r.text)
		}
		for _, p := range out.CommonPrefixes {
			all = append(all, "["+*p.Prefix+"]")
		}
		if !*out.IsTruncated {
			return strings.Join(all, " ")
		}
		all = append(all, "|")
		in.KeyMarker, in.VersionIdMarker = out.NextKeyMarker, out.NextVersionIdMarker
	}
}

func star(latest bool) string {
	if latest {
		return "*"
	}
	return ""
}

func getVersion(t *testing.T, c *awss3.Client, bucket, key string, id *string) string {
	t.Helper()
	out, err := c.GetObject(t.Context(), &awss3.GetObjectInput{Bucket: &bucket, Key: &key, VersionId: id})
	if err != nil {
		t.Fatalf("get %s of %s/%s: %v", *id, bucket, key, err)
	}
	if *out.VersionId != *id {
		t.Errorf("asked for %s, got %s", *id, *out.VersionId)
	}
	return readAll(t, out.Body)
}

func remove(t *testing.T, c *awss3.Client, bucket, key string, id *string) *awss3.DeleteObjectOutput {
	t.Helper()
	out, err := c.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: &key, VersionId: id})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// restore copies a version onto its own key.
func restore(t *testing.T, c *awss3.Client, bucket, key, id string) (*awss3.CopyObjectOutput, error) {
	t.Helper()
	return c.CopyObject(t.Context(), &awss3.CopyObjectInput{Bucket: &bucket, Key: &key, CopySource: aws.String(bucket + "/" + key + "?versionId=" + id)})
}

func TestOlderVersionsAreKeptReadRestoredAndRemoved(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	if out := put(t, holder, bucket, invoice, "1"); out.VersionId != nil {
		t.Errorf("a bucket that keeps nothing shows the version %s", *out.VersionId)
	}
	if got := versions(t, holder, awss3.ListObjectVersionsInput{Bucket: &bucket}); got != invoice+":1*" {
		t.Errorf("got %q", got)
	}
	enable := &awss3.PutBucketVersioningInput{Bucket: &bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled}}
	_, err := holder.PutBucketVersioning(t.Context(), enable)
	wantRefused(t, err, 403, "AccessDenied")
	if _, err := w.root().PutBucketVersioning(t.Context(), enable); err != nil {
		t.Fatal(err)
	}
	if out, err := holder.GetBucketVersioning(t.Context(), &awss3.GetBucketVersioningInput{Bucket: &bucket}); err != nil || out.Status != types.BucketVersioningStatusEnabled {
		t.Errorf("got %+v, %v", out, err)
	}
	two := put(t, holder, bucket, invoice, "22").VersionId
	three := put(t, w.lease("orders/1001", 6), bucket, invoice, "333").VersionId
	holder = w.holder("orders/1001", 6)
	deleted := remove(t, holder, bucket, invoice, nil)
	if !*deleted.DeleteMarker || deleted.VersionId == nil {
		t.Errorf("deleted: %+v", deleted)
	}
	list := awss3.ListObjectVersionsInput{Bucket: &bucket}
	if got := versions(t, holder, list); got != invoice+":D* "+invoice+":3 "+invoice+":2 "+invoice+":1" {
		t.Errorf("got %q", got)
	}
	w.age("100 hours")
	w.sweep(maintenance.Swept{}, maintenance.Sweep{}) // all of it is kept
	if a, b := getVersion(t, w.root(), bucket, invoice, two), getVersion(t, w.root(), bucket, invoice, three); a != "22" || b != "333" {
		t.Errorf("got %q and %q", a, b)
	}
	w.checkMarker(deleted.VersionId)
	// Restored without copying bytes.
	blobs := w.blobs()
	out, err := restore(t, holder, bucket, invoice, *two)
	if err != nil || *out.CopySourceVersionId != *two || *out.VersionId == *two {
		t.Fatalf("restored: %+v, %v", out, err)
	}
	if got := get(t, holder, bucket, invoice); got != "22" || w.blobs() != blobs {
		t.Errorf("restored: got %q, and %d blobs instead of %d", got, w.blobs(), blobs)
	}
	// The source is removed, its bytes stay.
	remove(t, holder, bucket, invoice, two)
	w.age("100 hours")
	w.sweep(maintenance.Swept{}, maintenance.Sweep{})
	if got := get(t, holder, bucket, invoice); got != "22" {
		t.Errorf("after its source is gone: got %q", got)
	}
	if got := versions(t, holder, list); got != invoice+":2* "+invoice+":D "+invoice+":3 "+invoice+":1" {
		t.Errorf("got %q", got)
	}
	// The next older version becomes current, unless a deletion precedes it.
	remove(t, holder, bucket, invoice, out.VersionId)
	_, err = holder.GetObject(t.Context(), getInput(bucket, invoice))
	wantRefused(t, err, 404, "NoSuchKey")
	if gone := remove(t, holder, bucket, invoice, deleted.VersionId); !*gone.DeleteMarker {
		t.Error("a deletion was removed, and the answer does not say so")
	}
	if got := get(t, holder, bucket, invoice); got != "333" {
		t.Errorf("after the deletion was removed: got %q", got)
	}
	remove(t, holder, bucket, invoice, two) // already removed
	w.age("100 hours")
	w.sweep(maintenance.Swept{Condemned: 1, Deleted: 1}, maintenance.Sweep{})
	w.namedBlobsAreThere()
	if n := w.count("SELECT count(*) FROM objects.versions WHERE token = 6 AND holder = 'test'"); n != 3 {
		t.Errorf("%d versions are recorded with the second holder's token, want 3", n)
	}
	if n := w.count("SELECT count(*) FROM objects.versions WHERE removed_with = 6 AND removed_by = 'test'"); n != 3 {
		t.Errorf("%d versions are recorded as removed, want 3", n)
	}
	wantRefused(t, second(w.root().DeleteBucket(t.Context(), &awss3.DeleteBucketInput{Bucket: &bucket})), 409, "BucketNotEmpty")
}

func second[T any](_ T, err error) error { return err }

func (w *world) checkMarker(id *string) {
	t := w.t
	t.Helper()
	for path, want := range map[string]int{"": 404, "?versionId=" + *id: 405} {
		for _, method := range []string{"GET", "HEAD"} {
			res, _ := w.send(raw{creds: w.issue("orders/1001", 6), method: method, path: "/orders/" + invoice + path})
			if res.StatusCode != want || res.Header.Get("X-Amz-Delete-Marker") != "true" || res.Header.Get("X-Amz-Version-Id") != *id {
				t.Errorf("%s %s: got %d %v", method, path, res.StatusCode, res.Header)
			}
		}
	}
}

// namedBlobsAreThere reads the bytes of every current or kept version.
func (w *world) namedBlobsAreThere() {
	w.t.Helper()
	const named = `SELECT v.* FROM objects.versions v WHERE v.kept_order IS NOT NULL OR EXISTS (SELECT FROM objects.pointers p WHERE p.version = v.id)`
	for what, sql := range map[string]string{
		"blobs of current or kept versions that are not live": "SELECT count(*) FROM (SELECT unnest(n.blobs) AS id FROM (" + named + ") n) c LEFT JOIN objects.blobs b USING (id) WHERE b.state IS DISTINCT FROM 'live'",
		"live blobs that no current or kept version names":    "SELECT count(*) FROM objects.blobs b WHERE b.state = 'live' AND NOT EXISTS (SELECT FROM (" + named + ") n WHERE b.id = ANY (n.blobs))",
	} {
		if n := w.count(sql); n != 0 {
			w.t.Errorf("%d %s", n, what)
		}
	}
	rows, err := w.admin.Query(w.t.Context(), "SELECT n.blobs, n.blob_sizes FROM ("+named+") n WHERE NOT n.deletion")
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var ids [][16]byte
		var sizes []int64
		if err := rows.Scan(&ids, &sizes); err != nil {
			w.t.Fatal(err)
		}
		for i, id := range ids {
			if size, err := w.store.Size(w.t.Context(), id); err != nil || size != sizes[i] {
				w.t.Errorf("a version names a blob of %d bytes; the store says %d, %v", sizes[i], size, err)
			}
		}
	}
}

func TestVersionsAreListedInPagesAndFolders(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.keeping(objects.Keep{All: true})
	holder := w.lease("orders/1001", 5)
	for _, key := range []string{"1001/a", "1001/b/1", "1001/b/2", "1001/c"} {
		put(t, holder, bucket, key, "x")
		put(t, holder, bucket, key, "yy")
	}
	remove(t, holder, bucket, "1001/b/2", nil)
	remove(t, holder, bucket, "1001/c", nil)
	for _, c := range []struct {
		in   awss3.ListObjectVersionsInput
		want string
	}{
		{awss3.ListObjectVersionsInput{}, "1001/a:2* 1001/a:1 1001/b/1:2* 1001/b/1:1 1001/b/2:D* 1001/b/2:2 1001/b/2:1 1001/c:D* 1001/c:2 1001/c:1"},
		{awss3.ListObjectVersionsInput{MaxKeys: aws.Int32(1), Prefix: aws.String("1001/b")}, "1001/b/1:2* | 1001/b/1:1 | 1001/b/2:D* | 1001/b/2:2 | 1001/b/2:1"},
		{awss3.ListObjectVersionsInput{MaxKeys: aws.Int32(3)}, "1001/a:2* 1001/a:1 1001/b/1:2* | 1001/b/1:1 1001/b/2:D* 1001/b/2:2 | 1001/b/2:1 1001/c:D* 1001/c:2 | 1001/c:1"},
		{awss3.ListObjectVersionsInput{Delimiter: aws.String("/"), Prefix: aws.String("1001/")}, "1001/a:2* 1001/a:1 1001/c:D* 1001/c:2 1001/c:1 [1001/b/]"},
		{awss3.ListObjectVersionsInput{Delimiter: aws.String("/"), Prefix: aws.String("1001/"), MaxKeys: aws.Int32(2)}, "1001/a:2* 1001/a:1 | 1001/c:D* [1001/b/] | 1001/c:2 1001/c:1"},
		{awss3.ListObjectVersionsInput{KeyMarker: aws.String("1001/b/2")}, "1001/c:D* 1001/c:2 1001/c:1"},
		{awss3.ListObjectVersionsInput{MaxKeys: aws.Int32(0)}, ""},
	} {
		c.in.Bucket = &bucket
		if got := versions(t, holder, c.in); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.in, got, c.want)
		}
	}
	_, err := holder.ListObjectVersions(t.Context(), &awss3.ListObjectVersionsInput{Bucket: &bucket, VersionIdMarker: aws.String(strings.Repeat("0", 32))})
	wantRefused(t, err, 400, "InvalidArgument")
	_, err = holder.ListObjectVersions(t.Context(), &awss3.ListObjectVersionsInput{Bucket: &bucket, KeyMarker: aws.String("1001/a"), VersionIdMarker: aws.String("x")})
	wantRefused(t, err, 400, "InvalidArgument")
	_, err = holder.ListObjectVersions(t.Context(), &awss3.ListObjectVersionsInput{Bucket: aws.String("nowhere")})
	wantRefused(t, err, 404, "NoSuchBucket")
}

// The current version is shown as "null" again then; a page that ends with it is continued all the same.
func TestVersionsAreListedInPagesOnceNoneAreKept(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.keeping(objects.Keep{All: true})
	holder := w.lease("orders/1001", 5)
	for _, key := range []string{"1001/a", "1001/b"} {
		put(t, holder, bucket, key, "x")
		put(t, holder, bucket, key, "yy")
	}
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{}); err != nil {
		t.Fatal(err)
	}
	in := awss3.ListObjectVersionsInput{Bucket: &bucket, MaxKeys: aws.Int32(1)}
	if got, want := versions(t, holder, in), "1001/a:2* | 1001/a:1 | 1001/b:2* | 1001/b:1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	out, err := holder.ListObjectVersions(t.Context(), &in)
	if err != nil || *out.Versions[0].VersionId != objects.NullVersion {
		t.Errorf("got %+v, %v", out, err)
	}
	in.KeyMarker, in.VersionIdMarker = aws.String("1001/a"), aws.String(objects.NullVersion) // a client's own
	if got, want := versions(t, holder, in), "1001/b:2* | 1001/b:1"; got != want {
		t.Errorf("after null: got %q, want %q", got, want)
	}
}

func TestVersionsAreChangedOnlyByTheCurrentHolder(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.keeping(objects.Keep{All: true})
	old := w.lease("orders/1001", 5)
	one := put(t, old, bucket, invoice, "1").VersionId
	put(t, old, bucket, invoice, "22")
	w.arm("orders/1001", 6)
	_, err := restore(t, old, bucket, invoice, *one)
	wantRefused(t, err, 412, "StaleFencingToken", "5", "6")
	_, err = old.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice), VersionId: one})
	wantRefused(t, err, 412, "StaleFencingToken")
	_, err = w.root().DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice), VersionId: one})
	wantRefused(t, err, 403, "MissingFencingToken")
	_, err = restore(t, w.lease("orders/1002", 1), bucket, invoice, *one)
	wantRefused(t, err, 403, "WrongFencingResource")
	current := w.holder("orders/1001", 6)
	_, err = restore(t, current, bucket, invoice, strings.Repeat("0", 32))
	wantRefused(t, err, 404, "NoSuchVersion")
	for _, id := range []string{"x", "../../etc", strings.Repeat("Z", 32)} {
		_, err = restore(t, current, bucket, invoice, id)
		wantRefused(t, err, 400, "InvalidArgument")
		_, err = current.GetObject(t.Context(), &awss3.GetObjectInput{Bucket: &bucket, Key: aws.String(invoice), VersionId: &id})
		wantRefused(t, err, 400, "InvalidArgument")
		_, err = current.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice), VersionId: &id})
		wantRefused(t, err, 400, "InvalidArgument")
	}
	_, err = current.GetObject(t.Context(), &awss3.GetObjectInput{Bucket: &bucket, Key: aws.String("1001/another"), VersionId: one}) // of another key
	wantRefused(t, err, 404, "NoSuchVersion")
	if got := versions(t, current, awss3.ListObjectVersionsInput{Bucket: &bucket}); got != invoice+":2* "+invoice+":1" {
		t.Errorf("refused changes left %q", got)
	}
	out, err := current.DeleteObjects(t.Context(), &awss3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: []types.ObjectIdentifier{
		{Key: aws.String(invoice), VersionId: one}, {Key: aws.String("1001/other")},
	}}})
	if err != nil || len(out.Errors) != 0 || *out.Deleted[0].VersionId != *one || !aws.ToBool(out.Deleted[1].DeleteMarker) || out.Deleted[1].DeleteMarkerVersionId == nil {
		t.Errorf("got %+v, %v", out, err)
	}
}

func TestALostReplyLeavesOneVersion(t *testing.T) {
	t.Parallel()
	for statement, do := range map[string]func(*testing.T, *awss3.Client, string, *string) error{
		"restore_version": func(t *testing.T, c *awss3.Client, bucket string, id *string) error {
			t.Helper()
			return second(restore(t, c, bucket, invoice, *id))
		},
		"remove_version": func(t *testing.T, c *awss3.Client, bucket string, id *string) error {
			t.Helper()
			return second(c.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice), VersionId: id}))
		},
		"commit_deletion": func(t *testing.T, c *awss3.Client, bucket string, _ *string) error {
			t.Helper()
			return second(c.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice)}))
		},
	} {
		for name, hit := range map[string]fault{"reply lost": loseReply, "request lost": loseRequest, "request delayed": delayRequest} {
			t.Run(statement+", "+name, func(t *testing.T) {
				t.Parallel()
				f := &faulty{}
				w := setup(t, throughFaulty(t, f))
				bucket := w.keeping(objects.Keep{All: true})
				holder := w.lease("orders/1001", 5)
				one := put(t, holder, bucket, invoice, "1").VersionId
				put(t, holder, bucket, invoice, "22")
				f.strike("objects."+statement, false, hit)
				if err := do(t, holder, bucket, one); err != nil || f.left() != 0 {
					t.Errorf("got %v; %d faults left", err, f.left())
				}
				put(t, holder, bucket, invoice, "333")
				if f.delayed != nil {
					f.delayed()
				}
				want := map[string]string{"restore_version": "3* 1 2 1", "remove_version": "3* 2", "commit_deletion": "3* D 2 1"}[statement]
				if got := strings.ReplaceAll(versions(t, holder, awss3.ListObjectVersionsInput{Bucket: &bucket}), invoice+":", ""); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
				w.namedBlobsAreThere()
			})
		}
	}
}

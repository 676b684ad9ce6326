//go:build unix

package s3_test

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

func TestABucketKeepsAsManyOrAsLongAsItIsTold(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.keeping(objects.Keep{Versions: 2})
	holder := w.lease("orders/1001", 5)
	for i := range 5 {
		put(t, holder, bucket, invoice, strings.Repeat("x", i+1))
	}
	put(t, holder, bucket, "1001/other", "x")
	list := awss3.ListObjectVersionsInput{Bucket: &bucket, Prefix: aws.String(invoice)}
	w.sweep(maintenance.Swept{Pruned: 2}, maintenance.Sweep{DryRun: true})
	w.sweep(maintenance.Swept{Pruned: 2}, maintenance.Sweep{})
	if got := versions(t, holder, list); got != invoice+":5* "+invoice+":4 "+invoice+":3" {
		t.Errorf("keeping 2: got %q", got)
	}
	remove(t, holder, bucket, invoice, nil)
	w.sweep(maintenance.Swept{Pruned: 1}, maintenance.Sweep{}) // the deletion does not count
	if got := versions(t, holder, list); got != invoice+":D* "+invoice+":5 "+invoice+":4" {
		t.Errorf("keeping 2, deleted: got %q", got)
	}
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{For: time.Hour}); err != nil {
		t.Fatal(err)
	}
	w.sweep(maintenance.Swept{}, maintenance.Sweep{})
	if _, err := w.admin.Exec(t.Context(), "UPDATE objects.versions SET kept_at = kept_at - interval '61 minutes' WHERE size = 4"); err != nil {
		t.Fatal(err)
	}
	w.sweep(maintenance.Swept{Pruned: 1}, maintenance.Sweep{})
	if got := versions(t, holder, list); got != invoice+":D* "+invoice+":5" {
		t.Errorf("keeping 1 h: got %q", got)
	}
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{}); err != nil {
		t.Fatal(err)
	}
	w.sweep(maintenance.Swept{Pruned: 1}, maintenance.Sweep{})
	w.sweep(maintenance.Swept{Pruned: 1}, maintenance.Sweep{}) // the deletion, which no longer hides anything
	if got := versions(t, holder, list); got != "" {
		t.Errorf("keeping none: got %q", got)
	}
	w.age("25 hours")
	w.sweep(maintenance.Swept{Condemned: 5, Deleted: 5}, maintenance.Sweep{})
	if n := w.blobs(); n != 1 {
		t.Errorf("%d blobs are left, want 1", n)
	}
	w.namedBlobsAreThere()
	for _, bad := range []objects.Keep{{Versions: -1}, {Versions: 2_000_000}, {For: time.Millisecond}} {
		if err := w.srv.Catalog().SetKeep(t.Context(), bucket, bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	if err := w.srv.Catalog().SetKeep(t.Context(), "nowhere", objects.Keep{All: true}); err == nil {
		t.Error("a bucket that is not there keeps all")
	}
}

func TestWhatABucketKeepsIsReadAndWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]objects.Keep{"none": {}, "all": {All: true}, "7": {Versions: 7}, "30d": {For: 720 * time.Hour}, "1h30m": {For: 90 * time.Minute}} {
		got, err := objects.ParseKeep(text)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
		if again, err := objects.ParseKeep(got.String()); err != nil || again != want {
			t.Errorf("%s reads back as %+v, %v", got, again, err)
		}
	}
	for _, bad := range []string{"", "0", "-1", "01", "1e3", "5x", "0d", "-3d", "99999999999d", "1ms", "1000001", "40000d", "never"} {
		if k, err := objects.ParseKeep(bad); err == nil {
			t.Errorf("%q was read as %s", bad, k)
		}
	}
}

//go:build unix

package s3_test

import (
	"testing"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/gateway/blob"
)

// A database restored from a backup lists versions whose bytes were swept since. A restored store lacks some blobs, or
// has truncated ones.
func TestAVersionWhoseBytesAreGoneReplacesNothing(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(w *world, id blob.ID) error{
		"gone": func(w *world, id blob.ID) error { return w.store.Delete(w.t.Context(), id) },
		"cut short": func(w *world, id blob.ID) error {
			if err := w.store.Delete(w.t.Context(), id); err != nil {
				return err
			}
			return w.store.Put(w.t.Context(), id, body("ol"), 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			bucket := w.bucket()
			w.keepAll()
			holder := w.lease("orders/1001", 5)
			old := put(t, holder, bucket, invoice, "old")
			put(t, holder, bucket, invoice, "new")
			var id blob.ID
			if err := w.admin.QueryRow(t.Context(), "SELECT blobs[1] FROM objects.versions ORDER BY created_at LIMIT 1").Scan(&id); err != nil {
				t.Fatal(err)
			}
			if err := spoil(w, id); err != nil {
				t.Fatal(err)
			}
			_, err := restore(t, holder, bucket, invoice, *old.VersionId)
			wantRefused(t, err, 500, "InternalError")
			if got := get(t, holder, bucket, invoice); got != "new" {
				t.Errorf("the object holds %q", got)
			}
			if out, err := holder.ListObjectVersions(t.Context(), &awss3.ListObjectVersionsInput{Bucket: &bucket}); err != nil || len(out.Versions) != 2 {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
}

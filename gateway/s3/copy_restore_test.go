//go:build unix

package s3_test

import (
	"fmt"
	"log/slog"
	"regexp"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/gateway/blob"
)

// spoiled are the ways to damage a blob of three bytes. A database restored from a backup lists versions whose bytes
// were swept since. A restored store lacks some blobs, or has truncated ones.
var spoiled = map[string]func(w *world, id blob.ID) error{
	"gone": func(w *world, id blob.ID) error { return w.store.Delete(w.t.Context(), id) },
	"cut short": func(w *world, id blob.ID) error {
		if err := w.store.Delete(w.t.Context(), id); err != nil {
			return err
		}
		return w.store.Put(w.t.Context(), id, body("ol"), 2)
	},
}

func TestAVersionWhoseBytesAreGoneReplacesNothing(t *testing.T) {
	t.Parallel()
	for name, spoil := range spoiled {
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

// A repetition repairs no damage, so no answer says that the blob store failed.
func TestAVersionWhoseBytesAreGoneIsDamaged(t *testing.T) {
	t.Parallel()
	for name, spoil := range spoiled {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &lines{}
			w := setup(t, func(c *config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
			bucket := w.bucket()
			holder := w.lease("orders/1001", 5)
			put(t, holder, bucket, invoice, "old")
			m := begin(t, holder, bucket, types.ChecksumAlgorithmCrc32c)
			var id blob.ID
			var version [16]byte
			if err := w.admin.QueryRow(t.Context(), "SELECT id, blobs[1] FROM objects.versions").Scan(&version, &id); err != nil {
				t.Fatal(err)
			}
			if err := spoil(w, id); err != nil {
				t.Fatal(err)
			}
			source := aws.String(bucket + "/" + invoice)
			_, err := holder.GetObject(t.Context(), getInput(bucket, invoice))
			wantRefused(t, err, 500, "InternalError")
			_, err = holder.CopyObject(t.Context(), &awss3.CopyObjectInput{Bucket: &bucket, Key: aws.String("1001/copy"), CopySource: source})
			wantRefused(t, err, 500, "InternalError")
			_, err = m.copyPart(holder, 1, awss3.UploadPartCopyInput{CopySource: source})
			wantRefused(t, err, 500, "InternalError")
			for _, operation := range []string{"GetObject", "CopyObject", "UploadPartCopy"} {
				line := regexp.MustCompile(fmt.Sprintf("operation=%s .*version %x.*%s", operation, version, id))
				if !line.MatchString(log.String()) {
					t.Errorf("no line names the version and the blob that %s lacks:\n%s", operation, log)
				}
			}
		})
	}
}

//go:build unix

package s3_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

// A deletion is forgotten only once the fence itself refuses every late attempt of it.
func TestADeletionIsForgottenWhenTheFenceStandsAboveIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	creds := w.issue("orders/1001", 5)
	r := raw{creds: creds, method: "DELETE", path: "/orders/" + invoice, invocation: "the one deletion"}
	if res, text := w.send(r); res.StatusCode != http.StatusNoContent {
		t.Fatalf("got %d %s", res.StatusCode, text)
	}
	put(t, holder, bucket, invoice, "later")
	if _, err := w.admin.Exec(t.Context(), "UPDATE objects.versions SET created_at = created_at - interval '1 year'"); err != nil {
		t.Fatal(err)
	}
	w.sweep(maintenance.Swept{}, maintenance.Sweep{}) // old, but in doubt
	if res, _ := w.send(r); res.StatusCode != http.StatusNoContent || get(t, holder, bucket, invoice) != "later" {
		t.Error("a late attempt deleted what was written after it")
	}
	w.arm("orders/1001", 6)
	w.sweep(maintenance.Swept{Forgotten: 1}, maintenance.Sweep{DryRun: true})
	w.sweep(maintenance.Swept{Forgotten: 1}, maintenance.Sweep{})
	if res, text := w.send(r); res.StatusCode != http.StatusPreconditionFailed || get(t, holder, bucket, invoice) != "later" {
		t.Errorf("a late attempt of a forgotten deletion: got %d %s", res.StatusCode, text)
	}
	if n := w.count("SELECT count(*) FROM objects.versions WHERE NOT deletion"); n != 1 {
		t.Errorf("%d versions are left, want 1", n)
	}
}

// With concurrent writers, restores and sweeps without grace periods, every listed blob exists.
func TestTheSweepTakesNoBlobThatAVersionNames(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.keeping(objects.Keep{Versions: 3})
	holder := w.lease("orders/1001", 5)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 7))
			for ctx.Err() == nil {
				key := fmt.Sprintf("1001/%d", rng.IntN(2))
				if err := disturb(ctx, holder, bucket, key, rng); err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", key, err)
				}
			}
		})
	}
	const restored = "SELECT count(*) FROM objects.versions WHERE origin IS NOT NULL"
	begun, sweeps := time.Now(), 0
	for ; time.Since(begun) < 6*time.Second || sweeps < 5 || w.count(restored) < 5; sweeps++ {
		if _, err := w.srv.Keeper().Sweep(ctx, maintenance.Sweep{SupersededAge: time.Nanosecond}); err != nil {
			t.Errorf("sweep %d: %v", sweeps, err)
			break
		}
	}
	cancel()
	wg.Wait()
	t.Logf("%d versions were restored, in %d sweeps", w.count(restored), sweeps)
	w.namedBlobsAreThere()
}

// disturb changes the key in some way. A version that another goroutine removed is no error.
func disturb(ctx context.Context, c *awss3.Client, bucket, key string, rng *rand.Rand) error {
	list, err := c.ListObjectVersions(ctx, &awss3.ListObjectVersionsInput{Bucket: &bucket, Prefix: &key})
	if err != nil {
		return err
	}
	choice := rng.IntN(5)
	switch {
	case choice < 2 && len(list.Versions) > 0:
		v := list.Versions[rng.IntN(len(list.Versions))]
		_, err = c.CopyObject(ctx, &awss3.CopyObjectInput{Bucket: &bucket, Key: &key, CopySource: aws.String(bucket + "/" + key + "?versionId=" + *v.VersionId)})
	case choice == 2 && len(list.Versions) > 0:
		v := list.Versions[rng.IntN(len(list.Versions))]
		_, err = c.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &bucket, Key: &key, VersionId: v.VersionId})
	case choice == 3:
		_, err = c.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &bucket, Key: &key})
	default:
		_, err = c.PutObject(ctx, &awss3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader(strings.Repeat("x", 1+rng.IntN(100)))})
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok && (api.ErrorCode() == "NoSuchVersion" || api.ErrorCode() == "NoSuchKey") {
		return nil
	}
	return err
}

//go:build unix

package s3_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestCreatingABucketKeepsTheRuleOfOneThatIsThere(t *testing.T) {
	t.Parallel()
	w := setup(t)
	create := func(rule objects.Rule, wantCreated bool, want objects.Rule) {
		t.Helper()
		created, current, err := w.srv.Catalog().CreateBucketIfAbsent(t.Context(), "orders", rule)
		if err != nil || created != wantCreated || current != want {
			t.Errorf("got %v, %v, %v; want %v, %v", created, current, err, wantCreated, want)
		}
	}
	create(objects.PrefixRule(2), true, objects.PrefixRule(2))
	create(objects.KeyRule(), false, objects.PrefixRule(2))
	create(objects.PrefixRule(2), false, objects.PrefixRule(2))
	if _, _, err := w.srv.Catalog().CreateBucketIfAbsent(t.Context(), "No", objects.KeyRule()); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	name := "orders"
	if _, err := w.root().CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: &name}); err != nil { // as in S3's us-east-1
		t.Error(err)
	}
	create(objects.KeyRule(), false, objects.PrefixRule(2))
}

func TestABucketIsCreatedAgainOnlyWhereS3AllowsIt(t *testing.T) {
	t.Parallel()
	for region, again := range map[string]bool{"us-east-1": true, "eu-central-1": false} {
		w := setup(t, func(c *config) { c.Region = region })
		root := w.client(rootCredentials(), func(o *awss3.Options) { o.Region = region })
		in := &awss3.CreateBucketInput{Bucket: aws.String("orders"), ObjectOwnership: types.ObjectOwnershipBucketOwnerEnforced}
		if region != "us-east-1" {
			in.CreateBucketConfiguration = &types.CreateBucketConfiguration{LocationConstraint: types.BucketLocationConstraint(region)}
		}
		if _, err := root.CreateBucket(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		_, err := root.CreateBucket(t.Context(), in)
		if again && err != nil {
			t.Errorf("%s: %v", region, err)
		}
		if !again {
			wantRefused(t, err, 409, "BucketAlreadyOwnedByYou")
		}
		if n := w.count("SELECT count(*) FROM objects.bucket_documents"); n != 0 {
			t.Errorf("%s: %d documents are stored", region, n)
		}
	}
}

// A login without any right on the objects can take any advisory lock, so uploads must not use one.
func TestNoLoginCanHoldUploadsUpByAnAdvisoryLock(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *config) { c.DatabaseTimeout = 5 * time.Second })
	bucket := w.bucket()
	conn, err := poolOf(t, w.pg.OtherURL).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	_, err = conn.Exec(t.Context(), "SELECT pg_advisory_lock($1::integer, hashtext($2))", w.count("SELECT 'objects.buckets'::regclass::oid::integer"), bucket)
	if err != nil {
		t.Fatal(err)
	}
	put(t, w.lease("orders/1001", 5), bucket, invoice, "data")
}

// The rule that a commit was checked against stays in force until the commit is over.
func TestARuleDoesNotChangeUnderACommit(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "SELECT objects.authorize($1, $2, 'orders/1001', 5, NULL)", bucket, invoice); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.srv.Catalog().EnsureBucket(t.Context(), bucket, objects.KeyRule())
		done <- err
	}()
	testenv.Eventually(t, "the change of the rule waits", func() bool {
		return w.count("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") == 1
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

//go:build unix

package s3_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/objects"
)

// once returns a bucket with write-once objects.
func (w *world) once(d time.Duration) string {
	w.t.Helper()
	bucket := w.bucket()
	w.retain(bucket, d)
	return bucket
}

func (w *world) retain(bucket string, d time.Duration) {
	w.t.Helper()
	if err := w.srv.Catalog().SetRetention(w.t.Context(), bucket, d); err != nil {
		w.t.Fatal(err)
	}
}

// older makes all versions older in PostgreSQL.
func (w *world) older(by string) {
	w.t.Helper()
	w.exec("UPDATE objects.versions SET created_at = created_at - interval '" + by + "'")
	w.exec("UPDATE objects.pointers SET modified_at = modified_at - interval '" + by + "'")
}

// changes are the ways to change an object, each with what it needs.
var changes = map[string]func(t *testing.T, w *world, c *awss3.Client, bucket, version string) error{
	"put": func(t *testing.T, _ *world, c *awss3.Client, bucket, _ string) error {
		_, err := tryPut(t, c, bucket, invoice, "other")
		return err
	},
	"put, large": func(t *testing.T, _ *world, c *awss3.Client, bucket, _ string) error {
		_, err := tryPut(t, c, bucket, invoice, strings.Repeat("x", 1<<17))
		return err
	},
	"put, if it is this one": func(t *testing.T, _ *world, c *awss3.Client, bucket, _ string) error {
		_, err := c.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: aws.String(invoice), Body: strings.NewReader("other"), IfMatch: aws.String(etagOf("data"))})
		return err
	},
	"copy": func(t *testing.T, _ *world, c *awss3.Client, bucket, _ string) error {
		_, err := c.CopyObject(t.Context(), &awss3.CopyObjectInput{Bucket: &bucket, Key: aws.String(invoice), CopySource: aws.String(bucket + "/1001/source")})
		return err
	},
	"restore": func(t *testing.T, _ *world, c *awss3.Client, bucket, version string) error {
		_, err := restore(t, c, bucket, invoice, version)
		return err
	},
	"multipart": func(t *testing.T, _ *world, c *awss3.Client, bucket, _ string) error {
		m := begin(t, c, bucket, "")
		m.part(1, []byte("other"))
		_, err := m.complete(c, m.parts)
		return err
	},
	"delete": func(t *testing.T, _ *world, c *awss3.Client, bucket, _ string) error {
		_, err := c.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
		return err
	},
	"delete the version": func(t *testing.T, _ *world, c *awss3.Client, bucket, version string) error {
		_, err := c.DeleteObject(t.Context(), &awss3.DeleteObjectInput{Bucket: &bucket, Key: aws.String(invoice), VersionId: &version})
		return err
	},
	"put tags": func(t *testing.T, _ *world, c *awss3.Client, bucket, _ string) error {
		_, err := c.PutObjectTagging(t.Context(), &awss3.PutObjectTaggingInput{
			Bucket: &bucket, Key: aws.String(invoice), Tagging: &types.Tagging{TagSet: []types.Tag{{Key: aws.String("a"), Value: aws.String("b")}}},
		})
		return err
	},
}

// Every change of an object is refused until its retention ends, and has no effect. Then it succeeds.
func TestAnObjectThatIsWrittenOnceStays(t *testing.T) {
	t.Parallel()
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			bucket := w.keeping(objects.Keep{All: true})
			w.retain(bucket, time.Hour)
			holder := w.lease("orders/1001", 5)
			version := *put(t, holder, bucket, invoice, "data").VersionId
			put(t, holder, bucket, "1001/source", "other")
			const rows = "SELECT count(*) FROM (SELECT FROM objects.versions UNION ALL SELECT FROM objects.pointers UNION ALL SELECT FROM objects.taggings) all_rows"
			before := w.count(rows)
			err := change(t, w, holder, bucket, version)
			wantRefused(t, err, http.StatusForbidden, "AccessDenied", "written once")
			if after := w.count(rows); after != before {
				t.Errorf("%d rows, before %d", after, before)
			}
			if text := get(t, holder, bucket, invoice); text != "data" {
				t.Errorf("it reads %q", text)
			}
			w.older("61 minutes")
			if err := change(t, w, holder, bucket, version); err != nil {
				t.Errorf("after its retention: %v", err)
			}
		})
	}
}

// So are a publication, and the removal of an object by a transaction.
func TestAPublicationDoesNotChangeWhatIsWrittenOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.once(time.Hour)
	g := w.sealed("orders/1001", 5)
	c := w.holder(g.Resource, g.Token)
	stage := func() string {
		out, err := c.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: aws.String(invoice), Body: strings.NewReader("data")}, staging)
		if err != nil {
			t.Fatal(err)
		}
		return stageOf(t, out.ResultMetadata)
	}
	if err := w.publish(g, stage()); err != nil {
		t.Fatal(err)
	}
	err := w.publish(g, stage())
	if err == nil || !strings.Contains(err.Error(), "ZO012") {
		t.Errorf("a second publication: %v", err)
	}
	err = pgx.BeginFunc(t.Context(), poolOf(t, w.pg.WriterURL), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT fence.use($1::text, $2::text), fence.unpublish('orders', $3)", g.Resource, g.Presented(), invoice)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "ZO012") {
		t.Errorf("a removal: %v", err)
	}
}

// Of several concurrent uploads of a key one is stored; the others are refused independently.
func TestOfUploadsOfAKeyThatIsWrittenOnceOneIsStored(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.once(time.Hour)
	holder := w.lease("orders/1001", 5)
	var wg sync.WaitGroup
	var failed [24]error
	for n := range failed {
		key := invoice
		if n%3 == 0 { // others that are not refused
			key = fmt.Sprintf("1001/%d", n)
		}
		wg.Go(func() { _, failed[n] = tryPut(t, holder, bucket, key, fmt.Sprint(n)) })
	}
	wg.Wait()
	stored := 0
	for n, err := range failed {
		switch {
		case n%3 == 0 && err != nil:
			t.Errorf("another key: %v", err)
		case n%3 != 0 && err == nil:
			stored++
		case n%3 != 0:
			wantRefused(t, err, http.StatusForbidden, "AccessDenied")
		}
	}
	if stored != 1 {
		t.Errorf("%d were stored", stored)
	}
}

// A repeated request gets its first result, as in every bucket.
func TestARepeatedUploadOfWhatIsWrittenOnceIsAnswered(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.once(time.Hour)
	w.arm("orders/1001", 5)
	r := w.of("PUT", invoice, "", nil)
	for try := range 2 {
		if res, text := w.again(r, []byte("")); res.StatusCode != http.StatusOK {
			t.Errorf("try %d: %d %s", try, res.StatusCode, text)
		}
	}
}

func TestARetentionBecomesShorterOnlyWhereNothingLies(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.once(time.Hour)
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "data")
	set := func(d time.Duration) error { return w.srv.Catalog().SetRetention(t.Context(), bucket, d) }
	for _, d := range []time.Duration{0, time.Minute} {
		if err := set(d); !errors.Is(err, objects.ErrRetained) {
			t.Errorf("%s: %v", d, err)
		}
	}
	for _, d := range []time.Duration{time.Hour, 2 * time.Hour} {
		if err := set(d); err != nil {
			t.Errorf("%s: %v", d, err)
		}
	}
	if b, err := w.srv.Catalog().Bucket(t.Context(), bucket); err != nil || b.Retained != 2*time.Hour {
		t.Errorf("it is reported as %s, %v", b.Retained, err)
	}
	w.older("3 hours")
	remove(t, holder, bucket, invoice, nil)
	if err := set(0); err != nil {
		t.Errorf("where nothing lies: %v", err)
	}
	for _, d := range []time.Duration{-time.Second, time.Millisecond} {
		if err := set(d); err == nil {
			t.Errorf("%s was taken", d)
		}
	}
	if err := w.srv.Catalog().SetRetention(t.Context(), "nowhere", time.Hour); !errors.Is(err, objects.ErrNoBucket) {
		t.Errorf("a bucket that is not there: %v", err)
	}
}

// A key that was read has the same content until its retention ends, also while PostgreSQL is away. A missing key is
// looked up each time.
func TestAKeyOnceReadReadsTheSameWhilePostgreSQLIsAway(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]pgx.QueryExecMode{"look-ups together": pgx.QueryExecModeCacheStatement, "one by one": pgx.QueryExecModeExec} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &faulty{}
			w := setup(t, throughFaulty(t, f), func(cfg *config) {
				config := cfg.Pool.Config()
				config.ConnConfig.DefaultQueryExecMode = mode
				pool, err := pgxpool.NewWithConfig(t.Context(), config)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				cfg.Pool = pool
			})
			bucket := w.once(time.Hour)
			holder := w.lease("orders/1001", 5)
			put(t, holder, bucket, invoice, "data")
			put(t, holder, bucket, "1001/unread", "data")
			missing := func(key string, status int) {
				t.Helper()
				_, err := holder.GetObject(t.Context(), getInput(bucket, key))
				wantRefused(t, err, status, map[int]string{404: "NoSuchKey", 503: "ServiceUnavailable"}[status])
			}
			if text := get(t, holder, bucket, invoice); text != "data" {
				t.Fatal(text)
			}
			missing("1001/later", 404)
			f.setDown(true)
			if text := get(t, holder, bucket, invoice); text != "data" {
				t.Errorf("it reads %q", text)
			}
			if out, err := holder.HeadObject(t.Context(), &awss3.HeadObjectInput{Bucket: &bucket, Key: aws.String(invoice)}); err != nil || *out.ETag != etagOf("data") {
				t.Errorf("head: %v", err)
			}
			missing("1001/unread", 503)
			missing("1001/later", 503)
			f.setDown(false)
			put(t, holder, bucket, "1001/later", "now")
			if text := get(t, holder, bucket, "1001/later"); text != "now" {
				t.Errorf("what was absent reads %q", text)
			}
			f.setDown(true)
			w.srv.SawDatabase("another one")
			missing(invoice, 503)
		})
	}
}

// Nothing is cached for a bucket whose objects may change, or beyond their retention.
func TestWhatMayChangeIsNotRemembered(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]time.Duration{"not written once": 0, "its retention is over": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			bucket := w.once(d)
			holder := w.lease("orders/1001", 5)
			put(t, holder, bucket, invoice, "data")
			w.older("61 minutes")
			get(t, holder, bucket, invoice)
			put(t, holder, bucket, invoice, "other")
			w.older("61 minutes")
			if text := get(t, holder, bucket, invoice); text != "other" {
				t.Errorf("it reads %q", text)
			}
		})
	}
}

// A version whose bytes are gone is looked up again: a restored database may list another.
func TestAVersionWithoutBytesIsForgotten(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.once(time.Hour)
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "data")
	get(t, holder, bucket, invoice)
	put(t, holder, bucket, "1001/other", "other")
	gone := w.blobOf(bucket, invoice)
	w.exec("UPDATE objects.pointers p SET version = o.version, size = o.size, etag = o.etag FROM objects.pointers o WHERE p.key = '" + invoice + "' AND o.key = '1001/other'")
	if err := w.store.Delete(context.Background(), gone); err != nil {
		t.Fatal(err)
	}
	if text := get(t, holder, bucket, invoice); text != "other" {
		t.Errorf("it reads %q", text)
	}
}

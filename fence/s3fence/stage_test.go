//go:build unix

package s3fence_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/fence/sqlfence/pgxsql"
)

func body(s string) io.Reader { return strings.NewReader(s) }

func TestKeysOfAnyKindAndSizeAreStaged(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for i, key := range []string{"a b+c", "ü/%2F/=&?#", "~._-!'()", "x//y", strings.Repeat("k", 400)} {
		g := w.acquire(bucket+"/"+key, fence.Token(i+1))
		text := strings.Repeat(key, i*1000)
		staged := w.stage(g, key, text)
		if staged.Size != int64(len(text)) || staged.Key != key || staged.Bucket != bucket {
			t.Errorf("staged %+v", staged)
		}
		err := sqlfence.InTx(t.Context(), openSQL(t, "pgx", w.pg.WriterURL), g, func(tx *sql.Tx) error { return s3fence.PublishSQL(t.Context(), tx, staged) })
		if err != nil {
			t.Fatal(err)
		}
		if got := w.read(key); got != text {
			t.Errorf("%q holds %d bytes, want %d", key, len(got), len(text))
		}
	}
}

func TestStagingIsRefusedAsAnyUpload(t *testing.T) {
	t.Parallel()
	w := setup(t)
	old := w.acquire(report, 1)
	current := w.acquire(report, 2)
	stage := func(c *s3fence.Client, bucket, key string) error {
		_, err := c.Stage(t.Context(), bucket, key, body("abc"), 3)
		return err
	}
	err := stage(w.files(old), bucket, name)
	wantErr(t, "stale", err, fence.ErrStale)
	if e, ok := errors.AsType[*s3fence.StageError](err); !ok || e.Status != 412 || e.Code != "StaleFencingToken" || !strings.Contains(e.Message, "stands at 2") {
		t.Errorf("got %+v", e)
	}
	wantErr(t, "another resource", stage(w.files(current), bucket, "other"), fence.ErrWrongResource)
	wantErr(t, "never issued", stage(w.files(fence.Grant{Resource: report, Token: 3}), bucket, name), fence.ErrNeverIssued)
	root := s3fence.Config{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}
	wantErr(t, "no grant", stage(w.open(root), bucket, name), fence.ErrNoGrant)
	root.Grant = current
	if err := stage(w.open(root), bucket, name); err != nil {
		t.Error(err)
	}
	if e, ok := errors.AsType[*s3fence.StageError](stage(w.files(current), "nowhere", name)); !ok || e.Code != "NoSuchBucket" {
		t.Errorf("got %+v", e)
	}
	wantErr(t, "no bucket", stage(w.files(current), "", name), fence.ErrInvalid)
	_, err = w.files(current).Stage(t.Context(), bucket, name, body(""), -1)
	wantErr(t, "no size", err, fence.ErrInvalid)
	for _, cfg := range []s3fence.Config{{}, {Endpoint: "host"}, {Endpoint: "http://host"}, {Endpoint: "http://host", AccessKeyID: "a"}} {
		_, err := s3fence.New(cfg)
		wantErr(t, fmt.Sprint(cfg.Endpoint), err, fence.ErrInvalid)
	}
}

func TestAnUploadThatBreaksOffStagesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	files := w.files(w.acquire(report, 1))
	broken := errors.New("the disk is gone")
	_, err := files.Stage(t.Context(), bucket, name, io.MultiReader(body("abc"), iotest.ErrReader(broken)), 10)
	wantErr(t, "the reader fails", err, broken)
	if _, err = files.Stage(t.Context(), bucket, name, body("abc"), 10); err == nil {
		t.Error("fewer bytes than announced were staged")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = files.Stage(ctx, bucket, name, body("abc"), 3)
	wantErr(t, "cancelled", err, context.Canceled)
	if n := w.count("SELECT count(*) FROM objects.stages"); n != 0 {
		t.Errorf("%d stages", n)
	}
	if s, err := files.Stage(t.Context(), bucket, name, body("abcdef"), 3); err != nil || s.ETag != "900150983cd24fb0d6963f7d28e17f72" { // of abc
		t.Errorf("%+v, %v", s, err)
	}
}

func TestAnAnswerThatIsNoStageIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"does not know the header": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("ETag", `"900150983cd24fb0d6963f7d28e17f72"`)
		},
		"other bytes": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("ETag", `"x"`)
			w.Header().Set("Fencing-Stage", "1")
		},
		"no S3 error": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadGateway) },
	} {
		server := httptest.NewServer(answer)
		defer server.Close()
		c, err := s3fence.New(s3fence.Config{Endpoint: server.URL, AccessKeyID: "a", SecretAccessKey: "b", HTTPClient: server.Client()})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := c.Stage(t.Context(), "b", "k", body("abc"), 3); err == nil {
			t.Errorf("%s: staged %+v", name, s)
		}
	}
}

func TestWhetherAnUploadWithoutAnAnswerIsStagedIsUnknown(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.URL.Path {
		case "/away/b/k":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/lost/b/k":
			w.WriteHeader(http.StatusBadGateway)
		case "/late/b/k":
			w.WriteHeader(http.StatusGatewayTimeout)
		default:
			panic(http.ErrAbortHandler)
		}
	}))
	defer server.Close()
	for endpoint, unknown := range map[string]bool{
		server.URL: true, server.URL + "/lost": true, server.URL + "/late": true, server.URL + "/away": false, "http://127.0.0.1:1": false,
	} {
		c, err := s3fence.New(s3fence.Config{Endpoint: endpoint, AccessKeyID: "a", SecretAccessKey: "b", HTTPClient: server.Client()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Stage(t.Context(), "b", "k", body("abc"), 3); err == nil || errors.Is(err, fence.ErrUnknown) != unknown {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}

func TestTheEnvironmentOfFencegateRunIsEnough(t *testing.T) {
	t.Parallel()
	got := s3fence.FromEnv(func(name string) (string, bool) { return name, !strings.HasPrefix(name, "AWS_CONTAINER") })
	got.Credentials = nil
	if got != (s3fence.Config{
		Endpoint: "AWS_ENDPOINT_URL_S3", Region: "AWS_REGION", AccessKeyID: "AWS_ACCESS_KEY_ID", SecretAccessKey: "AWS_SECRET_ACCESS_KEY",
		SessionToken: "AWS_SESSION_TOKEN",
	}) {
		t.Errorf("got %+v", got)
	}
}

func openSQL(t *testing.T, driver, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestPublishingByDatabaseSQL(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	for _, driver := range []string{"pgx", "postgres"} {
		db := openSQL(t, driver, withoutTLS(w.pg.WriterURL))
		for i, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			staged := []s3fence.Staged{w.stage(g, name, fmt.Sprint(driver, i)), w.stage(g, name, "and again")}
			opts := sqlfence.TxOptions{TxOptions: sql.TxOptions{Isolation: level}}
			write := func(tx *sql.Tx) error {
				if _, err := tx.ExecContext(t.Context(), "INSERT INTO rows VALUES ($1)", driver); err != nil {
					return err
				}
				return s3fence.PublishSQL(t.Context(), tx, staged...)
			}
			wantErr(t, "before", s3fence.OutcomeSQL(t.Context(), db, staged[0]), fence.ErrNotCommitted)
			if err := sqlfence.InTxAll(t.Context(), db, opts, []fence.Grant{g}, write); err != nil {
				t.Fatal(err)
			}
			if err := s3fence.OutcomeSQL(t.Context(), db, staged[0]); err != nil {
				t.Error(err)
			}
			wantErr(t, "again", sqlfence.InTxAll(t.Context(), db, opts, []fence.Grant{g}, write), s3fence.ErrPublished)
			if n := w.count("SELECT count(*) FROM rows WHERE note = $1", driver); n != i+1 {
				t.Errorf("%d rows", n)
			}
		}
	}
	newer := w.stage(g, name, "x")
	w.acquire(report, 2)
	db := openSQL(t, "postgres", withoutTLS(w.pg.WriterURL))
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), "SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true)", report, g.Presented()); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "stale", s3fence.PublishSQL(t.Context(), tx, newer), fence.ErrStale)
}

func withoutTLS(url string) string {
	if strings.Contains(url, "?") {
		return url + "&sslmode=disable"
	}
	return url + "?sslmode=disable"
}

// A body written a megabyte at a time is staged without buffering all of it.
func TestStagingStreams(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	const size = 64 << 20
	staged, err := w.files(g).Stage(t.Context(), bucket, name, io.LimitReader(repeating{}, size), size)
	if err != nil || staged.Size != size {
		t.Fatalf("%+v, %v", staged, err)
	}
	if n := w.count("SELECT blob_sizes[1]::int FROM objects.stages"); n != size {
		t.Errorf("%d bytes are recorded", n)
	}
}

type repeating struct{}

func (repeating) Read(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte("x"), len(p))), nil }

// The context's grant may be superseded when the outcome is asked. It is not presented.
func TestTheOutcomeIsAskedWithoutTheContextsGrant(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	staged := w.record(g, name)
	if err := w.publish(pgx.ReadCommitted, g, staged); err != nil {
		t.Fatal(err)
	}
	w.acquire(report, 2)
	db, err := pgxsql.Open(w.pg.WriterURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := s3fence.OutcomeSQL(sqlfence.WithGrant(t.Context(), g), db, staged); err != nil {
		t.Error(err)
	}
}

//go:build unix

package s3fence_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awscreds "github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.VerifyMain(m)
}

const (
	bucket = "reports" // whose rule is key
	name   = "2026-11.csv"
	report = bucket + "/" + name // its resource

	rootAccess, rootSecret = "root", "root-secret"
)

var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// world is an S3 port and a database of one test, with a guarded table of rows.
type world struct {
	t      testing.TB
	pg     testenv.PG
	admin  *pgxpool.Pool // superuser
	writer *pgxpool.Pool // fence_writer
	srv    *s3.Server
	keys   *credentials.Keyring
	client *http.Client
	addr   string
}

func setup(t testing.TB) *world {
	t.Helper()
	pg := testenv.Postgres(t)
	config, err := pgxpool.ParseConfig(pg.WriterURL)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 20 // for transactions that stay open until the test ends
	writer, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(writer.Close)
	w := &world{t: t, pg: pg, admin: pg.Pool(t), writer: writer}
	store, err := blob.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if w.keys, err = credentials.ParseKeyring("test:" + strings.Repeat("4f", 32)); err != nil {
		t.Fatal(err)
	}
	pool := testenv.PoolOf(t, pg.GatewayURL)
	if err := maintenance.New(objects.NewDatabase(pool, 0), store).Claim(t.Context(), false); err != nil { // allows uploads without bytes
		t.Fatal(err)
	}
	w.srv, err = s3.New(s3.Deps{
		Pool: pool, Store: store, Keys: w.keys, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}, s3.Options{
		RootAccessKey: rootAccess, RootSecretKey: rootSecret,
		Reserve: -1, // no reserve: every blob belongs to an upload
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.srv.Serve(ctx, ln) }()
	transport := &http.Transport{}
	w.addr, w.client = ln.Addr().String(), &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	w.rule(objects.KeyRule())
	w.exec(`CREATE TABLE rows (note text); GRANT ALL ON rows TO PUBLIC; SELECT fence.protect('rows', under => 'reports/')`)
	return w
}

func (w *world) rule(r objects.Rule) {
	w.t.Helper()
	if _, err := w.srv.Catalog().EnsureBucket(w.t.Context(), bucket, r); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.admin.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) count(sql string, args ...any) int {
	w.t.Helper()
	var n int
	if err := w.admin.QueryRow(w.t.Context(), sql, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// acquire arms the resource, as acquiring a lease does.
func (w *world) acquire(resource string, token fence.Token) fence.Grant {
	w.t.Helper()
	g := fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()}
	w.exec("SELECT fence.raise($1, $2, $3, 'worker')", g.Resource, int64(g.Token), g.Seal.Hash())
	w.exec("SELECT fence.drain($1, $2, $3)", g.Resource, int64(g.Token), g.Seal.Hash())
	return g
}

// files returns a client with the credentials of a grant's lease.
func (w *world) files(g fence.Grant) *s3fence.Client {
	w.t.Helper()
	c, err := w.keys.Issue(g.Resource, g.Token, time.Now().Add(time.Hour), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.open(s3fence.Config{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken})
}

func (w *world) open(cfg s3fence.Config) *s3fence.Client {
	w.t.Helper()
	cfg.Endpoint, cfg.HTTPClient = "http://"+w.addr, w.client
	c, err := s3fence.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) stage(g fence.Grant, key, text string, opts ...s3fence.Option) s3fence.Staged {
	w.t.Helper()
	s, err := w.files(g).Stage(w.t.Context(), bucket, key, strings.NewReader(text), int64(len(text)), opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// record creates a stage without bytes, for tests that are about rows only.
func (w *world) record(g fence.Grant, key string) s3fence.Staged {
	w.t.Helper()
	id, data := blob.NewID().String(), blob.NewID().String()
	w.exec("SELECT objects.begin_upload($1::text::uuid, $2, $3, $4, $5, $6)", data, bucket, key, g.Resource, int64(g.Token), g.Seal.Hash())
	w.exec("SELECT objects.stage_upload($1::text::uuid, $2, $3, ARRAY[$4::text::uuid], '{1}', 'e', '{}', $5, $6, $7, NULL, false, NULL)",
		id, bucket, key, data, g.Resource, int64(g.Token), g.Seal.Hash())
	return s3fence.Staged{ID: id, Bucket: bucket, Key: key, ETag: "e", Size: 1}
}

// publish writes a row and publishes, in one transaction under the grant.
func (w *world) publish(level pgx.TxIsoLevel, g fence.Grant, staged ...s3fence.Staged) error {
	return publishOn(w.t.Context(), w.writer, level, g, staged...)
}

func publishOn(ctx context.Context, db pgfence.Beginner, level pgx.TxIsoLevel, g fence.Grant, staged ...s3fence.Staged) error {
	return pgfence.InTxWith(ctx, db, pgx.TxOptions{IsoLevel: level}, g, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO rows VALUES ($1)", staged[0].ID); err != nil {
			return err
		}
		return s3fence.Publish(ctx, tx, staged...)
	})
}

// begin begins a transaction that presents the grant and takes its snapshot.
func (w *world) begin(level pgx.TxIsoLevel, grants ...fence.Grant) pgx.Tx {
	w.t.Helper()
	tx, err := w.writer.BeginTx(w.t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(w.t.Context())) })
	if _, err := tx.Exec(w.t.Context(), "SELECT 1"); err != nil {
		w.t.Fatal(err)
	}
	if len(grants) > 0 {
		if err := pgfence.Use(w.t.Context(), tx, grants...); err != nil {
			w.t.Fatal(err)
		}
	}
	return tx
}

// read returns the object as any S3 client sees it; "" if there is none.
func (w *world) read(key string) string {
	w.t.Helper()
	c := awss3.New(awss3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://" + w.addr), UsePathStyle: true, HTTPClient: w.client, RetryMaxAttempts: 1,
		Credentials: awscreds.NewStaticCredentialsProvider(rootAccess, rootSecret, ""),
	})
	out, err := c.GetObject(w.t.Context(), &awss3.GetObjectInput{Bucket: aws.String(bucket), Key: &key})
	if _, none := errors.AsType[*types.NoSuchKey](err); none {
		return ""
	}
	if err != nil {
		w.t.Fatal(err)
	}
	text, err := io.ReadAll(out.Body)
	if err := errors.Join(err, out.Body.Close()); err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// holds checks the visible object and number of rows.
func (w *world) holds(when, text string, rows int) {
	w.t.Helper()
	if got := w.read(name); got != text {
		w.t.Errorf("%s: the object holds %q, want %q", when, got, text)
	}
	if n := w.count("SELECT count(*) FROM rows"); n != rows {
		w.t.Errorf("%s: %d rows, want %d", when, n, rows)
	}
}

func wantErr(t *testing.T, when string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", when, err, want)
	}
}

func wantState(t *testing.T, when string, err error, state string) {
	t.Helper()
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != state {
		t.Errorf("%s: got %v, want SQLSTATE %s", when, err, state)
	}
}

// age makes every upload older.
func (w *world) age(by string) {
	w.t.Helper()
	w.exec("UPDATE objects.blobs SET changed_at = changed_at - $1::text::interval", by)
}

func testPool(w *world) *pgxpool.Pool {
	w.t.Helper()
	return testenv.PoolOf(w.t, w.pg.GatewayURL)
}

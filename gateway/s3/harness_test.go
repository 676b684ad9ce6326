//go:build unix

package s3_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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
	"github.com/aws/smithy-go"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/internal/testenv/s3posix"
)

func TestMain(m *testing.M) {
	s3posix.RunIfAsked()
	testenv.VerifyMain(m)
}

const (
	rootAccess = "root"
	rootSecret = "root-secret"
)

// world is the server of one test, with a database and a blob folder of its own.
type world struct {
	t     *testing.T
	pg    testenv.PG
	admin *pgxpool.Pool // superuser
	store *spy
	keys  *credentials.Keyring
	srv   *s3.Server
	addr  string
	stop  context.CancelFunc // of the server
	ended <-chan struct{}    // closed when it has ended
}

// config is everything that a test may choose for a server.
type config struct {
	s3.Deps
	s3.Options
}

type option func(*config)

// setup starts a server with default settings that has already worked: small uploads find reserved blobs.
func setup(t *testing.T, opts ...option) *world {
	t.Helper()
	w := start(t, opts...)
	w.srv.WarmUp()
	return w
}

// start starts a server that has not worked yet.
func start(t *testing.T, opts ...option) *world {
	t.Helper()
	pg := testenv.Postgres(t)
	w := &world{t: t, pg: pg, admin: pg.Pool(t), keys: keyring(t), store: &spy{Store: dir(t)}}
	cfg := config{
		Deps: s3.Deps{
			Pool: testenv.PoolOf(t, pg.GatewayURL), Store: w.store, Keys: w.keys, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		},
		Options: s3.Options{RootAccessKey: rootAccess, RootSecretKey: rootSecret, DefaultRule: objects.PrefixRule(1)},
	}
	for _, o := range opts {
		o(&cfg)
	}
	if _, ok := w.store.Store.(folder); ok && cfg.Store == w.store {
		cfg.Store = folderSpy{w.store}
	}
	srv, err := s3.New(cfg.Deps, cfg.Options)
	if err != nil {
		t.Fatal(err)
	}
	w.srv = srv
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	ended := make(chan struct{})
	w.ended = ended
	go func() {
		defer close(ended)
		if err := srv.Serve(ctx, ln); err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return w
}

func (w *world) bucket() string {
	w.t.Helper()
	if _, err := w.srv.Catalog().EnsureBucket(w.t.Context(), "orders", objects.PrefixRule(1)); err != nil {
		w.t.Fatal(err)
	}
	return "orders"
}

func keyring(t *testing.T) *credentials.Keyring {
	t.Helper()
	k, err := credentials.ParseKeyring("test:" + strings.Repeat("4f", 32))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func dir(t *testing.T) blob.Store {
	t.Helper()
	d, err := blob.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// arm raises the fence, as acquiring a lease does.
func (w *world) arm(resource string, token fence.Token) {
	w.t.Helper()
	hash := sha256.Sum256([]byte("seal of " + token.String()))
	w.armHash(resource, token, hash[:])
}

func (w *world) armHash(resource string, token fence.Token, hash []byte) {
	w.t.Helper()
	for _, sql := range []string{"SELECT fence.raise($1, $2, $3, 'test')", "SELECT fence.drain($1, $2, $3)"} {
		args := []any{resource, int64(token), hash}
		if _, err := w.admin.Exec(w.t.Context(), sql, args[:strings.Count(sql, "$")]...); err != nil {
			w.t.Fatalf("arm %s to %d: %v", resource, token, err)
		}
	}
}

// lease arms and returns a client with the lease's credentials.
func (w *world) lease(resource string, token fence.Token) *awss3.Client {
	w.t.Helper()
	w.arm(resource, token)
	return w.holder(resource, token)
}

// holder returns a client with the credentials of a grant.
func (w *world) holder(resource string, token fence.Token, opts ...func(*awss3.Options)) *awss3.Client {
	w.t.Helper()
	c, err := w.keys.Issue(resource, token, time.Now().Add(time.Hour), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.client(c, opts...)
}

func (w *world) root() *awss3.Client {
	return w.client(credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret})
}

func (w *world) client(c credentials.Credentials, opts ...func(*awss3.Options)) *awss3.Client {
	transport := &http.Transport{}
	w.t.Cleanup(transport.CloseIdleConnections)
	o := awss3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://" + w.addr), UsePathStyle: true, HTTPClient: &http.Client{Transport: transport},
		Credentials:      awscreds.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, c.SessionToken),
		RetryMaxAttempts: 1,
	}
	return awss3.New(o, opts...)
}

func put(t *testing.T, c *awss3.Client, bucket, key, data string) *awss3.PutObjectOutput {
	t.Helper()
	out, err := tryPut(t, c, bucket, key, data)
	if err != nil {
		t.Fatalf("put %s/%s: %v", bucket, key, err)
	}
	return out
}

func tryPut(t *testing.T, c *awss3.Client, bucket, key, data string, opts ...func(*awss3.Options)) (*awss3.PutObjectOutput, error) {
	t.Helper()
	return c.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader(data)}, opts...)
}

func get(t *testing.T, c *awss3.Client, bucket, key string) string {
	t.Helper()
	out, err := c.GetObject(t.Context(), &awss3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		t.Fatalf("get %s/%s: %v", bucket, key, err)
	}
	return readAll(t, out.Body)
}

func readAll(t *testing.T, r io.ReadCloser) string {
	t.Helper()
	data, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// wantRefused checks an S3 error's status, code and text.
func wantRefused(t *testing.T, err error, status int, code string, texts ...string) {
	t.Helper()
	api, isAPI := errors.AsType[smithy.APIError](err)
	response, isHTTP := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err)
	if !isAPI || !isHTTP {
		t.Fatalf("got %v, want an S3 error %d %s", err, status, code)
	}
	if response.HTTPStatusCode() != status || api.ErrorCode() != code {
		t.Errorf("got %d %s (%s), want %d %s", response.HTTPStatusCode(), api.ErrorCode(), api.ErrorMessage(), status, code)
	}
	for _, text := range texts {
		if !strings.Contains(api.ErrorMessage(), text) {
			t.Errorf("message %q lacks %q", api.ErrorMessage(), text)
		}
	}
}

// half is a body that stops in the middle until resume is closed.
type half struct {
	data    []byte
	at      int
	reached chan struct{} // closed when the first half has been read
	resume  chan struct{} // close it to continue
}

func newHalf(n int) *half {
	return &half{data: bytes.Repeat([]byte("x"), n), reached: make(chan struct{}), resume: make(chan struct{})}
}

func (h *half) Read(p []byte) (int, error) {
	middle := len(h.data) / 2
	if h.at == len(h.data) {
		return 0, io.EOF
	}
	end := len(h.data)
	if h.at < middle {
		end = middle
	} else if h.at == middle {
		close(h.reached)
		<-h.resume
	}
	n := copy(p, h.data[h.at:end])
	h.at += n
	return n, nil
}

// underWay waits until the server has begun the upload and received half of it.
func (w *world) underWay(h *half) {
	w.t.Helper()
	<-h.reached
	testenv.Eventually(w.t, "the upload is under way", func() bool { return w.pending() == 1 })
}

func (w *world) url(format string, args ...any) string {
	return "http://" + w.addr + fmt.Sprintf(format, args...)
}

func poolOf(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	return testenv.PoolOf(t, url)
}

//go:build unix

package s3_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awscreds "github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/jackc/pgx/v5"
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

func body(s string) io.Reader { return strings.NewReader(s) }

// raw is a request whose headers and body the test chooses itself.
type raw struct {
	creds      credentials.Credentials
	method     string
	path       string
	header     map[string]string // signed
	unsigned   map[string]string // added after signing
	body       io.Reader
	size       int64
	invocation string    // amz-sdk-invocation-id; "": random; "none": absent
	at         time.Time // signed; default: now
	payload    string    // X-Amz-Content-Sha256; default UNSIGNED-PAYLOAD
}

const none = "none"

func (w *world) request(r raw) *http.Request {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), r.method, w.url("%s", r.path), r.body)
	if err != nil {
		w.t.Fatal(err)
	}
	req.ContentLength = r.size
	payload := cmp.Or(r.payload, "UNSIGNED-PAYLOAD")
	req.Header.Set("X-Amz-Content-Sha256", payload)
	if r.invocation == "" {
		r.invocation = rand.Text()
	}
	if r.invocation != none {
		req.Header.Set("Amz-Sdk-Invocation-Id", r.invocation)
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	err = v4.NewSigner().SignHTTP(w.t.Context(), aws.Credentials{
		AccessKeyID: r.creds.AccessKeyID, SecretAccessKey: r.creds.SecretAccessKey, SessionToken: r.creds.SessionToken,
	}, req, payload, "s3", "us-east-1", cmp.Or(r.at, time.Now()), func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err != nil {
		w.t.Fatal(err)
	}
	for k, v := range r.unsigned {
		req.Header.Set(k, v)
	}
	return req
}

// send sends the request and returns the response and its body.
func (w *world) send(r raw) (*http.Response, string) {
	w.t.Helper()
	res, err := httpClient(w.t).Do(w.request(r))
	if err != nil {
		w.t.Fatal(err)
	}
	return res, readAll(w.t, res.Body)
}

func httpClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (w *world) issue(resource string, token fence.Token) credentials.Credentials {
	w.t.Helper()
	c, err := w.keys.Issue(resource, token, time.Now().Add(time.Hour), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// answer is the result of a request that ran concurrently.
type answer struct {
	status int
	etag   string
	body   string
}

// async sends the request concurrently.
func (w *world) async(r raw) <-chan answer {
	w.t.Helper()
	req, client, done := w.request(r), httpClient(w.t), make(chan answer, 1)
	go func() {
		res, err := client.Do(req)
		if err != nil {
			done <- answer{body: err.Error()}
			return
		}
		data, err := io.ReadAll(res.Body)
		done <- answer{res.StatusCode, res.Header.Get("Etag"), string(data) + errText(errors.Join(err, res.Body.Close()))}
	}()
	return done
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// fault is what happens to a statement's connection to PostgreSQL.
type fault int32

const (
	loseReply    fault = iota + 1 // executed, and the reply is lost
	loseRequest                   // lost before it is sent
	delayRequest                  // the connection is lost, but the statement arrives later, on release
)

var errCut = errors.New("connection cut by the test")

// faulty is the network between a pool and PostgreSQL.
type faulty struct {
	mu      sync.Mutex
	pattern string
	faults  []fault // for the next statements that match the pattern
	down    bool
	after   bool // down once the faults are used up
	spare   bool // except for the other open connections
	conns   map[*faultyConn]struct{}
	delayed func() // delivers the delayed statement
}

// throughFaulty makes the server reach PostgreSQL through f.
func throughFaulty(t *testing.T, f *faulty) option {
	return func(cfg *config) {
		t.Helper()
		f.conns = map[*faultyConn]struct{}{}
		config := cfg.Pool.Config()
		config.ConnConfig.DialFunc = f.dial
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // so that each statement's text is on the wire
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		cfg.Pool = pool
	}
}

func (f *faulty) dial(ctx context.Context, network, address string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, errCut
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	fc := &faultyConn{Conn: c, f: f}
	f.conns[fc] = struct{}{}
	return fc, nil
}

// strike sets what happens to the next statements that match the pattern.
func (f *faulty) strike(pattern string, thenDown bool, faults ...fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pattern, f.faults, f.after = pattern, faults, thenDown
}

// setDown cuts all connections, or admits new ones again.
func (f *faulty) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
	if down {
		for c := range f.conns {
			_ = c.Conn.Close()
		}
		clear(f.conns)
	}
}

func (f *faulty) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.faults)
}

// next returns the fault that hits a message, if any.
func (f *faulty) next(c *faultyConn, message []byte) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.faults) == 0 || !strings.Contains(string(message), f.pattern) {
		return 0
	}
	hit := f.faults[0]
	f.faults = f.faults[1:]
	if f.after && len(f.faults) == 0 {
		f.down = true
		for other := range f.conns {
			if other != c && !f.spare {
				_ = other.Conn.Close()
			}
		}
	}
	return hit
}

type faultyConn struct {
	net.Conn

	f    *faulty
	hit  atomic.Int32 // the fault; 0: none yet
	late []byte       // a delayed statement
	lost atomic.Bool  // its sender has noticed
}

// deliver sends a delayed statement to PostgreSQL and waits until it has been executed.
func (c *faultyConn) deliver() {
	_, _ = c.Conn.Write(c.late)
	_, _ = io.ReadAtLeast(c.Conn, make([]byte, 64<<10), 6)
	_ = c.Conn.Close()
}

func (c *faultyConn) Write(p []byte) (int, error) {
	if c.hit.Load() == 0 {
		c.hit.Store(int32(c.f.next(c, p)))
	}
	switch fault(c.hit.Load()) {
	case loseRequest:
		return 0, errors.Join(errCut, c.Conn.Close())
	case delayRequest:
		if c.lost.Load() { // a Terminate
			return len(p), nil
		}
		c.late = append(c.late, p...)
		c.f.mu.Lock()
		c.f.delayed = c.deliver
		c.f.mu.Unlock()
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *faultyConn) Read(p []byte) (int, error) {
	switch fault(c.hit.Load()) {
	case delayRequest, loseRequest:
		c.lost.Store(true)
		return 0, errCut
	}
	n, err := c.Conn.Read(p)
	// On a busy machine pgconn reads while it still writes, so the fault may hit here.
	if fault(c.hit.Load()) == loseReply { // executed
		return 0, errors.Join(errCut, err, c.Conn.Close())
	}
	return n, err
}

func (c *faultyConn) Close() error {
	if fault(c.hit.Load()) == delayRequest {
		return nil // the test closes it
	}
	return c.Conn.Close()
}

func tokenOf(n int) fence.Token { return fence.Token(n) }

func getInput(bucket, key string) *awss3.GetObjectInput {
	return &awss3.GetObjectInput{Bucket: &bucket, Key: &key}
}

// The tests count what uploads have made and left. The server also keeps a reserve of blobs, which only it can list.

// announcing makes each upload announce a blob of its own, as on a store that makes no places, or if nothing can be
// reserved.
func announcing(cfg *config) { cfg.Reserve = -1 }

// byDefault makes small uploads take reserved blobs.
func byDefault(*config) {}

// bothWays runs a test of small uploads with reserved blobs, and with blobs that they announce themselves.
func bothWays(t *testing.T, test func(t *testing.T, way option)) {
	t.Helper()
	for name, way := range map[string]option{"reserved": byDefault, "announced": announcing} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, way)
		})
	}
}

// count runs a query for one number.
func (w *world) count(sql string, args ...any) int {
	w.t.Helper()
	var n int
	if err := w.admin.QueryRow(w.t.Context(), sql, args...).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// reserve returns the server's reserved blobs, at a moment when it announces none.
func (w *world) reserve() (ids []string) {
	w.t.Helper()
	var all []blob.ID
	testenv.Eventually(w.t, "no batch is on its way", func() (settled bool) {
		all, settled = w.srv.Reserved()
		return settled
	})
	ids = []string{}
	for _, id := range all {
		ids = append(ids, id.String())
	}
	return ids
}

// beside counts what is not in the reserve, which does not change during the count.
func (w *world) beside(count func(reserve []string) int) int {
	w.t.Helper()
	for {
		reserve := w.reserve()
		if n := count(reserve); slices.Equal(reserve, w.reserve()) {
			return n
		}
	}
}

// blobs counts the blobs in the store, without the reserve's places.
func (w *world) blobs() int {
	w.t.Helper()
	return w.beside(func(reserve []string) (n int) {
		for info, err := range w.store.All(w.t.Context()) {
			if err != nil {
				w.t.Fatal(err)
			}
			if info.Size > 0 || !slices.Contains(reserve, info.ID.String()) {
				n++
			}
		}
		return n
	})
}

// rows counts the rows of blobs, without the reserve's.
func (w *world) rows() int {
	w.t.Helper()
	return w.beside(func(reserve []string) int {
		return w.count("SELECT count(*) FROM objects.blobs WHERE state <> 'pending' OR id <> ALL ($1::text[]::uuid[])", reserve)
	})
}

// pending counts the blobs of uploads in progress or abandoned.
func (w *world) pending() int {
	w.t.Helper()
	return w.beside(func(reserve []string) int {
		return w.count("SELECT count(*) FROM objects.blobs WHERE state = 'pending' AND id <> ALL ($1::text[]::uuid[])", reserve)
	})
}

// nothingLeft checks that refused uploads left neither a version nor a blob, and that the reserve is complete.
func (w *world) nothingLeft(versions, blobs int) {
	w.t.Helper()
	if n := w.count("SELECT count(*) FROM objects.versions"); n != versions {
		w.t.Errorf("%d versions are recorded, want %d", n, versions)
	}
	if n := w.pending(); n != 0 {
		w.t.Errorf("%d blobs are still pending", n)
	}
	if n := w.blobs(); n != blobs {
		w.t.Errorf("%d blobs are stored, want %d", n, blobs)
	}
	w.reserveIsWhole()
}

// reserveIsWhole checks that each blob of the reserve is announced and has an empty place.
func (w *world) reserveIsWhole() {
	w.t.Helper()
	missing := w.beside(func(reserve []string) int {
		n := 2*len(reserve) - w.count("SELECT count(*) FROM objects.blobs WHERE state = 'pending' AND id = ANY ($1::text[]::uuid[])", reserve)
		for info, err := range w.store.All(w.t.Context()) {
			if err != nil {
				w.t.Fatal(err)
			}
			if info.Size == 0 && slices.Contains(reserve, info.ID.String()) {
				n--
			}
		}
		return n
	})
	if missing != 0 {
		w.t.Errorf("the reserve lacks %d rows or places", missing)
	}
}

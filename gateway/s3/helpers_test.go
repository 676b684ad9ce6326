//go:build unix

package s3_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

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
	held []byte       // a delayed statement
	lost atomic.Bool  // its sender has noticed
}

// deliver sends a delayed statement to PostgreSQL and waits until it has been executed.
func (c *faultyConn) deliver() {
	_, _ = c.Conn.Write(c.held)
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
		c.held = append(c.held, p...)
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
	// On a busy machine pgconn reads while it still writes, so the fault may hit meanwhile.
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

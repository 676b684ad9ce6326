package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/clock/clocktest"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// fakes stand for everything behind the API. A test may replace each func; with the zero value of err they succeed.
type fakes struct {
	clock     *clocktest.Clock // of deadlines
	acquire   func(context.Context, leasing.Request) (leasing.Lease, error)
	wait      leasing.Wait  // of the last acquisition
	sealHash  []byte        // of the record
	renewed   time.Duration // the ttl of the last renewal
	released  chan leasing.Ref
	record    fence.Record
	buckets   []string // the calls about buckets
	err       error    // of Renew, Release, Inspect, EnsureBucket and Run
	lockErr   error
	free      bool // the lock is not held
	unknown   bool // likewise, and no quorum remembers a token
	listed    []any
	listing   []fence.Record
	revoked   []string
	overtaken fence.Token // supersedes a conditional revocation; 0: none
	ran       []wire.Statement
	grant     fence.Grant
	results   []wire.Result
	terms     api.CredentialTerms // of the last credentials
}

var seal = fence.NewSeal()

func newFakes() *fakes {
	machine := clocktest.New()
	return &fakes{
		clock:    machine,
		released: make(chan leasing.Ref, 10),
		record:   fence.Record{Resource: "orders/1001", Token: 34, Sealed: true, Holder: "worker-a", ArmedAt: time.Unix(1700000000, 0)},
		acquire: func(_ context.Context, req leasing.Request) (leasing.Lease, error) {
			return leasing.Lease{
				Grant: fence.Grant{Resource: req.Resource, Token: 34, Seal: seal}, Owner: "0123456789abcdef",
				Deadline: machine.Now().Add(req.TTL - time.Millisecond),
			}, nil
		},
	}
}

// leases are the fakes as a source of leases: inspecting a lock and inspecting a fence have the same method name.
type leases struct{ *fakes }

func (f leases) Acquire(ctx context.Context, wait leasing.Wait, all ...leasing.Request) (given []leasing.Lease, err error) {
	f.wait = wait
	for _, r := range all {
		lease, err := f.acquire(ctx, r)
		if err != nil {
			return nil, err
		}
		given = append(given, lease)
	}
	return given, nil
}

func (f leases) Extend(_ context.Context, _ leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	f.renewed = ttl
	return f.clock.Now().Add(ttl), f.err
}

func (f leases) Release(_ context.Context, ref leasing.Ref) error {
	f.released <- ref
	return f.err
}

func (f leases) Inspect(_ context.Context, resources ...string) (all []leasing.Inspection, err error) {
	for _, name := range resources {
		one := leasing.Inspection{Resource: name, Members: []leasing.Member{{Name: "node-1", Token: 34}, {Name: "node-2"}}}
		if !f.unknown {
			one = leasing.Inspection{
				Resource: name, Locked: !f.free, Holder: "worker-a", Owner: "0123456789abcdef", Token: 34, TTL: 1500 * time.Millisecond, Waiters: 2,
				Members: []leasing.Member{{Name: "node-1", Locked: true, Holder: "worker-a", Token: 34, TTL: -1, Waiters: 2}, {Name: "node-2", Err: errors.New("away")}},
			}
		}
		all = append(all, one)
	}
	return all, f.lockErr
}

func (f *fakes) List(_ context.Context, prefix, after string, limit int) ([]fence.Record, error) {
	f.listed = []any{prefix, after, limit}
	return f.listing, f.err
}

func (f *fakes) Revoke(_ context.Context, resource, by string, seen fence.Token) (fence.Token, error) {
	if f.overtaken != 0 && seen != 0 {
		f.record.Token = f.overtaken
		return 0, &fence.NotRaisedError{Resource: resource, Offered: seen + 1, Recorded: f.overtaken}
	}
	f.revoked = append(f.revoked, resource, by)
	return 35, f.err
}

func (f *fakes) Holds(_ context.Context, record fence.Record, sealHash []byte) (bool, error) {
	return record.Token == f.record.Token && bytes.Equal(sealHash, f.sealHash), f.err
}

func (f *fakes) Inspect(context.Context, string) (fence.Record, error) {
	if errors.Is(f.err, leasing.ErrLost) { // a fence never returns it
		return f.record, nil
	}
	return f.record, f.err
}

func (f *fakes) Issue(_ string, _ fence.Token, expires time.Time, terms api.CredentialTerms) (wire.Credentials, error) {
	f.terms = terms
	return wire.Credentials{AccessKeyID: "ASIA", SecretAccessKey: "s", SessionToken: "t", ExpiresAt: expires}, nil
}

func (f *fakes) EnsureBucket(_ context.Context, name string, want wire.BucketRequest) (bool, error) {
	f.buckets = append(f.buckets, "ensure", name, want.Rule, want.Keep)
	if want.WriteOnce != "" {
		f.buckets = append(f.buckets, want.WriteOnce)
	}
	return want.Rule != "", f.err
}

func (f *fakes) InspectBucket(_ context.Context, name string) (wire.Bucket, error) {
	return wire.Bucket{Bucket: name, Rule: "key", Keep: "none"}, f.err
}

func (f *fakes) ListBuckets(_ context.Context, after string, limit int) ([]wire.Bucket, error) {
	f.buckets = append(f.buckets, "list", after, strconv.Itoa(limit))
	return []wire.Bucket{{Bucket: "a"}, {Bucket: "b"}}, f.err
}

func (f *fakes) SetPrefixRule(_ context.Context, name, prefix, rule string) error {
	f.buckets = append(f.buckets, "set", name, prefix, rule)
	return f.err
}

func (f *fakes) DropPrefixRule(_ context.Context, name, prefix string) error {
	f.buckets = append(f.buckets, "drop", name, prefix)
	return f.err
}

func (f *fakes) Run(_ context.Context, grant fence.Grant, statements []wire.Statement) ([]wire.Result, error) {
	f.grant, f.ran = grant, statements
	return f.results, f.err
}

var keys = api.HandleKeys{Current: "k1", Master: map[string][]byte{"k1": bytes.Repeat([]byte{1}, 32)}}

type option func(*api.Config)

func newServer(t *testing.T, f *fakes, opts ...option) *api.Server {
	t.Helper()
	cfg := api.Config{
		Leases: leases{f}, Fences: f, Credentials: f, Buckets: f, SQL: f, Handles: keys, MaxTTL: 5 * time.Minute,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, o := range opts {
		o(&cfg)
	}
	s, err := api.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type answer struct {
	status int
	header http.Header
	body   map[string]any
	text   string
}

func (a answer) str(name string) string { s, _ := a.body[name].(string); return s }

// request serves one request without a network. The answer must be in the table of routes.
func request(t *testing.T, s *api.Server, method, path, body string, headers ...string) answer {
	t.Helper()
	a := send(t, s, method, path, body, headers...)
	inTheTable(t, method, path, a)
	return a
}

// send is request for errors that only a fake returns.
func send(t *testing.T, s *api.Server, method, path, body string, headers ...string) answer {
	t.Helper()
	var payload io.Reader
	if body != "" {
		payload = strings.NewReader(body)
	}
	req := httptest.NewRequestWithContext(t.Context(), method, path, payload)
	req.Host = "127.0.0.1:7070"
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, req)
	a := answer{status: rec.Code, header: rec.Header(), text: rec.Body.String()}
	if strings.Contains(rec.Header().Get("Content-Type"), "json") {
		if err := json.Unmarshal(rec.Body.Bytes(), &a.body); err != nil {
			t.Fatalf("%s %s: %v in %s", method, path, err, a.text)
		}
	}
	return a
}

// aHandle acquires and returns the handle.
func aHandle(t *testing.T, s *api.Server) string {
	t.Helper()
	a := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1001"}`)
	if a.status != http.StatusCreated {
		t.Fatalf("acquire: %d %s", a.status, a.text)
	}
	return a.str("handle")
}

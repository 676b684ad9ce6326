package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/robustness/history"
)

// damaged is a memory whose registers can't be read.
type damaged struct {
	*memory

	grants int  // how many leases it gives
	whole  bool // asked for by the last acquisition
}

type damagedLease struct{ holding }

func (damagedLease) read(context.Context, string) (saw, wrong string, err error) {
	return "", "", errors.New("InternalError")
}

func (d *damaged) acquire(ctx context.Context, a ask) (holding, error) {
	d.whole = a.whole
	if d.grants == 0 {
		return nil, &failure{outcome: history.Refused, code: "held", err: errors.New("held")}
	}
	d.grants--
	h, err := d.memory.acquire(ctx, a)
	if err != nil {
		return nil, err
	}
	return damagedLease{h}, nil
}

// audit audits one resource. It returns how long that took, how many acquisitions were refused, and the error.
func (d *damaged) audit(t *testing.T) (took time.Duration, refused int, failed error) {
	t.Helper()
	cfg := Config{
		Workers: 1, MaxTTL: time.Second, History: filepath.Join(t.TempDir(), "history"), Gateways: []Gateway{{API: "http://127.0.0.1:1"}},
	}
	p, err := start(cfg, map[string]surface{"memory": d})
	if err != nil {
		t.Fatal(err)
	}
	prober, began := &Prober{p}, time.Now()
	failed = prober.Audit(t.Context(), 1, "memory", "r")
	took = time.Since(began)
	if err := prober.Close(); err != nil {
		t.Fatal(err)
	}
	ops, err := (&history.Reader{Path: cfg.History}).Next()
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		if op.Action == history.Acquire && op.Outcome == history.Refused {
			refused++
		}
	}
	return took, refused, failed
}

// A read that failed counts whatever the later tries say, and its lease is in nobody's way.
func TestAnAuditSaysWhatItCouldNotRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		grants     int
		unreadable bool
		refused    bool
	}{
		"always unreadable":           {1000, true, false},
		"first unreadable, then held": {1, true, true},
		"always held":                 {0, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &damaged{memory: &memory{dice: newDice(1, 7), at: map[string]*shelf{}}, grants: c.grants}
				took, refused, err := d.audit(t)
				if err == nil || errors.Is(err, ErrUnreadable) != c.unreadable || took < auditTime || !d.whole {
					t.Errorf("after %v: %v; whole %v", took, err, d.whole)
				}
				if (refused > 0) != c.refused {
					t.Errorf("%d acquisitions were refused", refused)
				}
			})
		})
	}
}

// objectServer answers every request with one object, and notes those that do not read it whole.
type objectServer struct {
	op   string
	body []byte
	part []string
	all  int
}

func (o *objectServer) RoundTrip(r *http.Request) (*http.Response, error) {
	o.all++
	if r.Method != http.MethodGet || r.Header.Get("Range") != "" || r.URL.Query().Has("list-type") {
		o.part = append(o.part, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Range"))
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"X-Amz-Meta-Op": {o.op}}, ContentLength: int64(len(o.body)),
		Body: io.NopCloser(bytes.NewReader(o.body)), Request: r,
	}, nil
}

func TestTheAuditorReadsObjectsWhole(t *testing.T) {
	t.Parallel()
	body, err := io.ReadAll(bodyOf("c1.1-1", 1000))
	if err != nil {
		t.Fatal(err)
	}
	server := &objectServer{op: "c1.1-1", body: body}
	c := s3.New(s3.Options{Region: "r", BaseEndpoint: aws.String("http://127.0.0.1:1"), UsePathStyle: true, HTTPClient: &http.Client{Transport: server}})
	h := &s3Holding{
		httpLease: &httpLease{}, s: &s3Surface{env: &env{cfg: Config{Bucket: "robust"}, dice: newDice(1, 2)}}, key: "r1-1/data", clients: []*s3.Client{c}, wholly: true,
	}
	for range 40 {
		if saw, wrong, err := h.readObject(t.Context()); saw != "c1.1-1" || wrong != "" || err != nil {
			t.Fatalf("%q, %q, %v", saw, wrong, err)
		}
	}
	if server.all != 40 || len(server.part) > 0 {
		t.Errorf("%d requests; %q", server.all, server.part)
	}
}

func TestAClientThatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	cfg := Config{Workers: 1, Surfaces: []string{"none"}, History: filepath.Join(t.TempDir(), "history"), Gateways: []Gateway{{API: "http://127.0.0.1:1"}}}
	if _, err := NewProber(cfg); err == nil || err.Error() != `no surface is called "none"` {
		t.Error(err)
	}
}

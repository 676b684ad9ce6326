package api_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
)

// The log also records operations on another's lease, and refusals on the page.
func TestTheLogSaysWhoManagesAndWhoWasDeniedOnThePage(t *testing.T) {
	t.Parallel()
	all, err := access.New([]access.Definition{
		define("worker", access.Rule{Resources: "*", Verbs: []access.Verb{access.Acquire}}),
		define("ops", access.Rule{Resources: "*", Verbs: []access.Verb{access.Manage, access.Inspect}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	var log safeBuffer
	s := newServer(t, newFakes(), func(c *api.Config) { c.Principals, c.Logger = all, slog.New(slog.NewTextHandler(&log, nil)) })
	handle := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1001"}`, "Authorization", "Bearer token of worker").str("handle")
	says := func(by string, lines ...string) {
		t.Helper()
		text := log.take()
		if !strings.Contains(text, "audit.principal="+by) || strings.Contains(text, "token of") || strings.Contains(text, handle) || strings.Contains(text, "secret") {
			t.Errorf("the log says %s", text)
		}
		for _, line := range lines {
			if strings.Count(text, line) != 1 {
				t.Errorf("the log says %s; want once %s", text, line)
			}
		}
	}
	says("worker")
	for _, c := range []struct{ path, by, says string }{
		{"credentials", "worker", `msg="S3 credentials were issued" resource=orders/1001 token=34 read_only=false`},
		{"renew", "ops", `msg="a principal renewed another's lease" resource=orders/1001 token=34 of=worker`},
		{"release", "ops", `msg="a principal released another's lease" resource=orders/1001 token=34 of=worker`},
	} {
		if a := request(t, s, "POST", "/v1/leases/"+c.path, `{"handle":"`+handle+`"}`, "Authorization", "Bearer token of "+c.by); a.status >= 300 {
			t.Errorf("%s: %d %s", c.path, a.status, a.text)
		}
		says(c.by, c.says)
	}
	request(t, s, "POST", "/v1/leases/renew", `{"handle":"`+handle+`"}`, "Authorization", "Bearer token of worker")
	if text := log.take(); strings.Contains(text, "another's lease") {
		t.Errorf("of one's own lease the log says %s", text)
	}

	b := newBrowser(t, transportTo(t, s))
	b.login("token of worker")
	says("worker", `msg="a request was denied" verb=inspect resource="" route=/page/login`)
	b.login("token of ops")
	b.do("/page/revoke?resource=orders/1001", nil)
	says("ops", `msg="a request was denied" verb=revoke resource=orders/1001 route=/page/revoke`)
	if _, err := all.Replace([]access.Definition{define("ops")}); err != nil {
		t.Fatal(err)
	}
	b.do("/", nil)
	says("ops", `msg="a request was denied" verb=inspect resource="" route=/`)
	b.do("/page/events", nil)
	says("ops", `msg="a request was denied" verb=inspect resource="" route=/page/events`)
}

// safeBuffer can be read while the server writes to it.
type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// take returns what was written since its last call.
func (b *safeBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}

func TestTheLogSaysWhoDidWhat(t *testing.T) {
	t.Parallel()
	ops := access.Definition{Name: "ops", Tokens: []access.Digest{access.DigestOf("the token of ops")}, Rules: []access.Rule{
		{Resources: "orders/*", Verbs: []access.Verb{access.Acquire, access.Revoke}}, {Verbs: []access.Verb{access.Buckets}},
	}}
	all, err := access.New([]access.Definition{ops})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := newServer(t, newFakes(), func(c *api.Config) { c.Principals, c.Logger = all, slog.New(slog.NewTextHandler(&log, nil)) })
	for _, c := range []struct{ method, path, body, says string }{
		{"POST", "/v1/leases", `{"resource":"orders/1001"}`, `msg="a lease was acquired" resource=orders/1001 token=34`},
		{"POST", "/v1/resources/orders/1001/revoke", `{}`, `msg="a resource was revoked" resource=orders/1001 token=35`},
		{"PUT", "/v1/buckets/a", `{"rule":"key"}`, `msg="a bucket was set by an operator" bucket=a`},
		{"GET", "/v1/sessions", "", `msg="a request was denied" verb=sessions`},
		{"POST", "/v1/leases", `{"resource":"stock/7"}`, `msg="a request was denied" verb=acquire resource=stock/7`},
	} {
		log.Reset()
		request(t, s, c.method, c.path, c.body, "Authorization", "Bearer the token of ops")
		if text := log.String(); !strings.Contains(text, c.says) || !strings.Contains(text, "audit.principal=ops") {
			t.Errorf("%s %s: the log says %s", c.method, c.path, text)
		}
		if text := log.String(); strings.Contains(text, "the token of") || strings.Contains(text, seal.Reveal()) {
			t.Errorf("%s %s: the log shows a secret: %s", c.method, c.path, text)
		}
	}
}

// The fence is raised, so the holder is out, although a write of it may still land.
func TestARevocationThatIsUndrainedIsInTheLogAndAmongTheEvents(t *testing.T) {
	t.Parallel()
	for token, raised := range map[fence.Token]bool{35: true, 0: false} { // 0: the fence was not raised
		f := newFakes()
		f.err = &fence.UndrainedError{Resource: "orders/1001", Token: token, Detail: "gid"}
		var log bytes.Buffer
		feed := activity.New(activity.Config{Keep: 10})
		s := newServer(t, f, func(c *api.Config) { c.Events, c.Logger = feed, slog.New(slog.NewTextHandler(&log, nil)) })
		request(t, s, "POST", "/v1/resources/orders/1001/revoke", `{"holder":"ops"}`)
		if logged := strings.Contains(log.String(), `msg="a resource was revoked" resource=orders/1001 token=35 by=ops`); logged != raised {
			t.Errorf("token %d: the log says %s", token, log.String())
		}
		if events := feed.Kept(""); len(events) > 0 != raised {
			t.Errorf("token %d: events %v", token, events)
		}
	}
}

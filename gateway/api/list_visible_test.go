package api_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// ordered lists its records as PostgreSQL does.
type ordered struct {
	*fakes

	names []string
}

func (o ordered) List(_ context.Context, prefix, after string, limit int) (page []fence.Record, err error) {
	for _, name := range o.names {
		if strings.HasPrefix(name, prefix) && name > after && len(page) < limit {
			page = append(page, fence.Record{Resource: name, Token: 1})
		}
	}
	return page, nil
}

func inspector(t *testing.T, resources ...string) *access.Principals {
	t.Helper()
	d := access.Definition{Name: "me", Tokens: []access.Digest{access.DigestOf("me")}}
	for _, r := range resources {
		d.Rules = append(d.Rules, access.Rule{Resources: r, Verbs: []access.Verb{access.Inspect}})
	}
	all, err := access.New([]access.Definition{d})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAListHasWhatMayBeSeenAndTellsNothingElse(t *testing.T) {
	t.Parallel()
	names := []string{"a", "orders", "orders/1", "orders/10", "orders/2", "secret/1", "secret/2", "stock/1", "stock/2", "z"}
	for _, c := range []struct {
		rules         []string
		query, listed string
	}{
		{[]string{"*"}, "", "a orders orders/1 orders/10 orders/2 secret/1 secret/2 stock/1 stock/2 z"},
		{[]string{"orders/*", "stock/*"}, "", "orders/1 orders/10 orders/2 stock/1 stock/2"},
		{[]string{"stock/*", "orders/1", "z", "b"}, "", "orders/1 stock/1 stock/2 z"},
		{[]string{"orders/*", "stock/*"}, "?prefix=orders/1", "orders/1 orders/10"},
		{[]string{"orders/*", "stock/*"}, "?prefix=s", "stock/1 stock/2"},
		{[]string{"orders/*", "stock/*"}, "?prefix=secret/", ""},
		{[]string{"orders/1", "stock/*"}, "?prefix=orders/", "orders/1"},
		{[]string{"orders/1", "stock/*"}, "?prefix=orders/10", ""},
		{[]string{"orders/1", "stock/*"}, "?after=orders/1", "stock/1 stock/2"},
		{[]string{"orders/1", "stock/*"}, "?after=orders/0", "orders/1 stock/1 stock/2"},
	} {
		for _, limit := range []string{"", "1", "2"} {
			s := newServer(t, newFakes(), func(cfg *api.Config) {
				cfg.Principals, cfg.Fences = inspector(t, c.rules...), ordered{newFakes(), names}
			})
			path := "/v1/resources" + c.query
			if limit != "" {
				path += map[bool]string{true: "?", false: "&"}[c.query == ""] + "limit=" + limit
			}
			var got []string
			for next := path; next != ""; {
				a := request(t, s, "GET", next, "", "Authorization", "Bearer me")
				var page wire.Resources
				if err := json.Unmarshal([]byte(a.text), &page); err != nil || a.status != http.StatusOK {
					t.Fatalf("%s: %d %s", next, a.status, a.text)
				}
				for _, r := range page.Resources {
					got = append(got, r.Resource)
				}
				if next = ""; page.Next != nil {
					if !slices.Contains(strings.Fields(c.listed), *page.Next) {
						t.Errorf("%v %s: the page's end names %q", c.rules, path, *page.Next)
					}
					base, _, _ := strings.Cut(path, "after=")
					next = strings.TrimRight(base, "?&") + map[bool]string{true: "&", false: "?"}[strings.Contains(strings.TrimRight(base, "?&"), "?")] + "after=" + *page.Next
					if limit != "" && !strings.Contains(next, "limit=") {
						next += "&limit=" + limit
					}
				}
			}
			if strings.Join(got, " ") != c.listed {
				t.Errorf("%v %s: got %q, want %q", c.rules, path, got, c.listed)
			}
		}
	}
}

func TestEventsAreThoseThatMayBeSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		feed, on := withEvents(t, 100)
		tell := func(resource string) { feed.Tell(activity.Event{Kind: wire.EventAcquired, Resource: resource}) }
		for _, r := range []string{"secret/1", "orders/1", "", "secret/2", "orders/2"} {
			tell(r)
		}
		all := inspector(t, "orders/*")
		s := newServer(t, newFakes(), on, func(c *api.Config) { c.Principals = all })
		kept := request(t, s, "GET", "/v1/events?follow=false", "", "Authorization", "Bearer me")
		if strings.Count(kept.text, "event:") != 2 || strings.Contains(kept.text, "secret") {
			t.Errorf("kept: %s", kept.text)
		}

		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer me")
		resp, err := transportTo(t, s).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		read := func(until string) (text string) {
			t.Helper()
			b := make([]byte, 4096)
			for !strings.Contains(text, until) {
				n, err := resp.Body.Read(b)
				if text += string(b[:n]); err != nil {
					t.Fatalf("%v after %s", err, text)
				}
			}
			return text
		}
		read("orders/2")
		tell("secret/3")
		tell("orders/3")
		if text := read("orders/3"); strings.Contains(text, "secret") {
			t.Errorf("streamed: %s", text)
		}

		// The principal's rights change: the stream ends, and the next one uses the new rights.
		if _, err := all.Replace([]access.Definition{{Name: "me", Tokens: []access.Digest{access.DigestOf("me")}}}); err != nil {
			t.Fatal(err)
		}
		after(t, 0, func() {
			if rest, err := io.ReadAll(resp.Body); err != nil || strings.Trim(string(rest), "\n") != "" {
				t.Errorf("the stream goes on: %q, %v", rest, err)
			}
		})
		if a := request(t, s, "GET", "/v1/events?follow=false", "", "Authorization", "Bearer me"); a.status != http.StatusForbidden {
			t.Errorf("asked again: %d %s", a.status, a.text)
		}
	})
}

// A principal that loses its right while it waits gets no lease.
func TestALeaseIsNotGivenToWhoLostTheRightMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFakes()
	acquires := access.Definition{Name: "me", Tokens: []access.Digest{access.DigestOf("me")}, Rules: []access.Rule{{Resources: "*", Verbs: []access.Verb{access.Acquire}}}}
	all, err := access.New([]access.Definition{acquires})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, f, func(c *api.Config) { c.Principals = all })
	inner := f.acquire
	f.acquire = func(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
		without := acquires
		without.Rules = nil
		if _, err := all.Replace([]access.Definition{without}); err != nil {
			t.Error(err)
		}
		return inner(ctx, r)
	}
	a := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1001","wait":"1s"}`, "Authorization", "Bearer me")
	if a.status != http.StatusForbidden || strings.Contains(a.text, seal.Reveal()) {
		t.Errorf("got %d %s", a.status, a.text)
	}
	select {
	case ref := <-f.released:
		if ref.Resource != "orders/1001" {
			t.Errorf("released %v", ref)
		}
	default:
		t.Error("the lease was not given back")
	}
}

// A wait ends when the right does, before the fence is armed. A change that keeps the right lets the wait continue, for
// the rest of its time.
func TestAWaitEndsWithTheRight(t *testing.T) {
	t.Parallel()
	for path, body := range map[string]string{"/v1/leases": `{"resource":"orders/1001","wait":"60s"}`, "/v1/leases/all": `{"resources":["orders/1001"],"wait":"60s"}`} {
		synctest.Test(t, func(t *testing.T) { waitsWithTheRight(t, path, body) })
	}
}

func waitsWithTheRight(t *testing.T, path, body string) {
	t.Helper()
	f := newFakes()
	inner := f.acquire
	come := make(chan struct{})
	var until time.Time
	waits := 0
	f.acquire = func(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
		until, _ = ctx.Deadline()
		waits++
		select {
		case <-come:
			return inner(ctx, r)
		case <-ctx.Done():
			return leasing.Lease{}, ctx.Err()
		}
	}
	may := func(resources ...string) []access.Definition {
		d := access.Definition{Name: "me", Tokens: []access.Digest{access.DigestOf("me")}}
		for _, r := range resources {
			d.Rules = append(d.Rules, access.Rule{Resources: r, Verbs: []access.Verb{access.Acquire}})
		}
		return []access.Definition{d}
	}
	all, err := access.New(may("*"))
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, f, func(c *api.Config) { c.Principals = all })
	change := func(resources ...string) {
		t.Helper()
		time.Sleep(20 * time.Second)
		if _, err := all.Replace(may(resources...)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
	}
	for _, c := range []struct {
		last   string // what it may at last
		waits  int
		status int
	}{{"stock/*", 2, http.StatusForbidden}, {"orders/1001", 3, http.StatusCreated}} {
		change("*")
		waits = 0
		began := time.Now()
		answers := make(chan answer, 1)
		go func() { answers <- request(t, s, "POST", path, body, "Authorization", "Bearer me") }()
		change("orders/*")
		change(c.last)
		if total := until.Sub(began); waits != c.waits || total != time.Minute {
			t.Errorf("%s: %d waits, of %v in all; want %d of a minute", path, waits, total, c.waits)
		}
		if c.status == http.StatusCreated {
			come <- struct{}{}
		}
		after(t, 0, func() {
			if a := <-answers; a.status != c.status || a.status == http.StatusForbidden && a.str("code") != "denied" {
				t.Errorf("%s at last with the right to %s: %d %s", path, c.last, a.status, a.text)
			}
		})
	}
}

func TestAHandleIsWorthWhatItsBearerMayNow(t *testing.T) {
	t.Parallel()
	s, all, handles := holding(t, access.Rule{Resources: "orders/*", Verbs: []access.Verb{access.Acquire}})
	body := handles.Replace(`{"handle":"%H"}`)
	if a := request(t, s, "POST", "/v1/leases/renew", body, "Authorization", "Bearer me"); a.status != http.StatusOK {
		t.Errorf("one's own: %d %s", a.status, a.text)
	}
	if a := request(t, s, "POST", "/v1/leases/renew", body, "Authorization", "Bearer another"); a.status != http.StatusForbidden || a.str("resource") != mine {
		t.Errorf("another's: %d %s", a.status, a.text)
	}
	if _, err := all.Replace([]access.Definition{{Name: "me", Tokens: []access.Digest{access.DigestOf("me")}}}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"renew", "release", "credentials"} {
		if a := request(t, s, "POST", "/v1/leases/"+path, body, "Authorization", "Bearer me"); a.status != http.StatusForbidden {
			t.Errorf("%s without the right: %d %s", path, a.status, a.text)
		}
	}
}

// A refused write under one resource's grant to a row that another guards is visible to principals that may inspect
// either; each sees only the resources that it may inspect.
func TestARefusalNamesNoResourceOfOthers(t *testing.T) {
	t.Parallel()
	feed := activity.New(activity.Config{Keep: 4})
	defer feed.Close()
	feed.Tell(activity.Event{Kind: wire.EventAcquired, Resource: "secret/0"})
	lost := feed.Kept("")[0].ID
	feed.Tell(activity.Event{Kind: wire.EventAway, Node: "node-1"})
	feed.Tell(activity.Event{Kind: wire.EventRefused, Code: "ZF004", Resource: "secret/1", Presented: 7, Needed: "orders/1", Table: "public.orders", Client: "10.0.0.7"})
	feed.Tell(activity.Event{Kind: wire.EventRefused, Code: "ZF004", Resource: "orders/1", Presented: 8, Needed: "secret/2", Table: "public.secrets"})
	feed.Tell(activity.Event{Kind: wire.EventRefused, Code: "ZF002", Needed: "secret/*"})
	feed.Tell(activity.Event{Kind: wire.EventRefused, Code: "ZF002", Needed: "orders/*"})
	all := inspector(t, "orders/*")
	s := newServer(t, newFakes(), func(c *api.Config) { c.Principals, c.Events = all, feed })
	a := request(t, s, "GET", "/v1/events?follow=false", "", "Authorization", "Bearer me", "Last-Event-ID", lost)
	for _, secret := range []string{"secret", "node-1", `"7"`, "missed\":"} {
		if strings.Contains(a.text, secret) {
			t.Errorf("%s is in: %s", secret, a.text)
		}
	}
	if strings.Count(a.text, "event: refused") != 3 || strings.Count(a.text, "event: missed") != 1 || !strings.Contains(a.text, `"needed":"orders/*"`) || !strings.Contains(a.text, `"presented":"8"`) {
		t.Error(a.text)
	}
}

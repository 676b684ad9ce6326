package api_test

import (
	"context"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// A principal that logs in repeatedly ends its own oldest sessions, and no others.
func TestManyLogInsEndOnlyOnesOwnSessions(t *testing.T) {
	t.Parallel()
	way, _, all, _ := paged(t)
	ops := newBrowser(t, way)
	ops.login("token of ops")
	var mine []*browser
	for range 9 {
		b := newBrowser(t, way)
		b.login("token of orders")
		mine = append(mine, b)
	}
	for range 300 {
		newBrowser(t, way).login("token of blind")
	}
	for i, b := range mine {
		if status, _ := b.do("/", nil); (status == http.StatusOK) != (i > 0) {
			t.Errorf("session %d of 9: %d", i, status)
		}
	}
	if status, _ := ops.do("/", nil); status != http.StatusOK {
		t.Errorf("another's session: %d", status)
	}
	// A principal without any right can still log out.
	if _, err := all.Replace([]access.Definition{define("ops"), define("orders")}); err != nil {
		t.Fatal(err)
	}
	if status, _ := ops.do("/page/logout", url.Values{"csrf": {ops.csrf("/")}}); status != http.StatusUnauthorized {
		t.Errorf("after the log-out: %d", status)
	}
}

// --api-rate also limits the page.
func TestThePageIsUnderTheRateLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, err := access.New([]access.Definition{define("ops", access.Rule{Resources: "*", Verbs: []access.Verb{access.Inspect}})})
		if err != nil {
			t.Fatal(err)
		}
		way := transportTo(t, newServer(t, newFakes(), func(c *api.Config) { c.Principals, c.PrincipalRate = all, 6 }))
		b := newBrowser(t, way)
		b.login("token of ops")
		csrf := b.csrf("/")
		for _, c := range []struct {
			what string
			want int
			ask  func() int
		}{
			{"pages", 6, func() int { status, _ := b.do("/", nil); return status }},
			{"streams", 6, func() int {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				_, status := b.stream(ctx)
				return status
			}},
			{"log-ins, each with the page behind it", 3, func() int { status, _ := newBrowser(t, way).login("token of ops"); return status }},
		} {
			time.Sleep(time.Second)
			n, status := -1, http.StatusOK
			for ; status == http.StatusOK && n <= c.want; n++ {
				status = c.ask()
			}
			if n != c.want || status != http.StatusTooManyRequests {
				t.Errorf("%d %s at once, then %d; want %d", n, c.what, status, c.want)
			}
		}
		if status, _ := b.do("/page/logout", url.Values{"csrf": {csrf}}); status != http.StatusUnauthorized {
			t.Errorf("the log-out: %d", status)
		}
	})
}

// One principal opens streams until it is refused; another still gets its own.
func TestNobodyTakesAllStreams(t *testing.T) {
	t.Parallel()
	way, _, _, feed := paged(t)
	feed.Tell(activity.Event{Kind: wire.EventAcquired, Resource: "orders/1"})
	page := func(name string) func(context.Context) int {
		b := newBrowser(t, way)
		b.login("token of " + name)
		return func(ctx context.Context) int {
			_, status := b.stream(ctx)
			return status
		}
	}
	api := func(name string) func(context.Context) int {
		b := newBrowser(t, way)
		return func(ctx context.Context) int {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+"/v1/events", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer token of "+name)
			resp, err := b.http.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = resp.Body.Close() })
			return resp.StatusCode
		}
	}
	for _, c := range []struct {
		of   string
		open func(name string) func(context.Context) int
		each int
	}{{"the page", page, 12}, {"the API", api, 25}} {
		ctx, cancel := context.WithCancel(t.Context())
		greedy, modest := c.open("orders"), c.open("ops")
		for i := range c.each {
			if status := greedy(ctx); status != http.StatusOK {
				t.Errorf("%s: stream %d of one principal: %d", c.of, i+1, status)
			}
		}
		if status := greedy(ctx); status != http.StatusServiceUnavailable {
			t.Errorf("%s: one more: %d", c.of, status)
		}
		if status := modest(ctx); status != http.StatusOK {
			t.Errorf("%s: another's: %d", c.of, status)
		}
		cancel()
	}
}

//go:build observability && unix

package observability_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
)

// sooner lists the test's only changes of the rules: shorter times, so that a run takes a minute instead of a day.
// README.md lists them, too.
var sooner = []struct{ pattern, with string }{
	{`scrape_interval: \w+`, "scrape_interval: 500ms"},
	{`evaluation_interval: \w+`, "evaluation_interval: 500ms"},
	{`for: \w+`, "for: 1s"},
	{`\[5m\]`, "[5s]"},
	{`\[1h\]`, "[1m]"},
	{`4 \* 3600`, "4"},
}

// fires waits for these alerts.
func (w *world) fires(names ...string) {
	w.t.Helper()
	fired := make(map[string]bool)
	began := time.Now()
	w.until(40*time.Second, fmt.Sprintf("all of %v fire", names), func() bool {
		var answer struct {
			Data struct {
				Alerts []struct {
					State  string
					Labels map[string]string
				}
			}
		}
		if err := w.get("/api/v1/alerts", &answer); err != nil {
			w.t.Fatal(err)
		}
		for _, a := range answer.Data.Alerts {
			if name := a.Labels["alertname"]; a.State == "firing" && !fired[name] && slices.Contains(names, name) {
				fired[name] = true
				w.t.Logf("%s fires after %v", name, time.Since(began).Round(100*time.Millisecond))
			}
		}
		return !slices.ContainsFunc(names, func(name string) bool { return !fired[name] })
	})
}

// load makes stale writes, and lets two callers wait for one another, until ctx ends.
func (w *world) load(ctx context.Context) (ended *sync.WaitGroup) {
	w.t.Helper()
	stale := w.acquire("orders/1")
	conn, err := w.login("-c fence.resource=orders/1 -c fence.token=" + stale.Presented)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.api.Release(w.t.Context(), stale.Handle); err != nil {
		w.t.Fatal(err)
	}
	every := func(d time.Duration, do func()) func() {
		return func() {
			tick := time.NewTicker(d)
			defer tick.Stop()
			for ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case <-tick.C:
					do()
				}
			}
		}
	}
	ended = new(sync.WaitGroup)
	write := every(100*time.Millisecond, func() {
		if _, err := conn.Exec(ctx, "UPDATE orders SET status = 'stale'"); err == nil {
			w.t.Error("a stale write passed")
		}
	})
	ended.Go(func() {
		write()
		_ = conn.Close(context.WithoutCancel(ctx))
	})
	for range 2 {
		ended.Go(every(10*time.Millisecond, func() {
			l, err := w.api.Acquire(ctx, client.AcquireRequest{Resource: "slow", TTL: 30 * time.Second, Wait: 20 * time.Second})
			if err != nil {
				return // held for longer, or the end of the load
			}
			select {
			case <-time.After(1500 * time.Millisecond):
			case <-ctx.Done():
			}
			_ = w.api.Release(context.WithoutCancel(ctx), l.Handle) // otherwise it expires
		}))
	}
	return ended
}

// used causes once each event that the dashboard has panels for and the load does not cause.
func (w *world) used() {
	w.t.Helper()
	if _, err := w.login("-c fence.tokens=1"); err == nil {
		w.t.Error("a login passed with an option of the fence that does not exist")
	}
	conn, err := w.login("")
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := conn.Exec(w.t.Context(), "SELECT 1"); err != nil {
		w.t.Fatal(err)
	}
	text, err := w.api.Sessions(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	var list struct {
		Sessions []struct {
			ID    string
			Token *fence.Token
		}
	}
	if err := json.Unmarshal(text, &list); err != nil {
		w.t.Fatal(err)
	}
	for _, s := range list.Sessions {
		if s.Token == nil {
			if err := w.api.EndSession(w.t.Context(), s.ID, "test"); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	_ = conn.Close(w.t.Context())
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://"+w.g.Addrs().S3+"/orders/x", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := w.http.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	_ = res.Body.Close()
}

// answered runs each expression of the dashboard, and reports those that fail or return nothing.
func (w *world) answered() {
	w.t.Helper()
	asked := 0
	for _, p := range readDashboard(w.t).Panels {
		for _, q := range p.Targets {
			expr := strings.NewReplacer("$job", "fencegate", "$instance", ".*", "$__rate_interval", "30s").Replace(q.Expr)
			var answer struct {
				Data struct{ Result []json.RawMessage }
			}
			if err := w.get("/api/v1/query?query="+url.QueryEscape(expr), &answer); err != nil {
				w.t.Errorf("%q: %s: %v", p.Title, expr, err)
			} else if len(answer.Data.Result) == 0 {
				w.t.Errorf("%q finds nothing: %s", p.Title, expr)
			}
			asked++
		}
	}
	w.t.Logf("%d expressions of the dashboard were answered", asked)
}

// With real faults, a real gateway, and a real Prometheus, each alert of alerts.yml fires that needs no principals.
func TestEachAlertFires(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.acquire("leaked")
	node := redis.NewClient(&redis.Options{Addr: w.nodes[0].Addr})
	t.Cleanup(func() { _ = node.Close() })
	w.until(20*time.Second, "the node has the lock, perhaps after a quorum of the others", func() bool {
		done, err := node.Persist(t.Context(), lock.DefaultKeyPrefix+":lock:leaked").Result()
		if err != nil {
			t.Fatal(err)
		}
		return done
	})
	blocked := w.acquire("blocked")
	if err := w.api.Release(t.Context(), blocked.Handle); err != nil {
		t.Fatal(err)
	}
	w.prometheus()
	loading, unload := context.WithCancel(t.Context())
	ended := w.load(loading)
	w.used()

	want := alerts(t)
	delete(want, "FencegatePrincipalsRefused") // this gateway has no principals: alerts.test.yml
	fires := func(names ...string) {
		t.Helper()
		w.fires(names...)
		for _, name := range names {
			delete(want, name)
		}
	}
	fires("FencegateCertificateEnds", "FencegateLeakFound", "FencegateUncoveredTable", "FencegateLeaseWaitSlow", "FencegateRefusalsRising", "FencegateSweepOverdue")
	w.answered()

	// A transaction holds the fence's row, so raising times out.
	pool, err := w.pg.Pool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM fence.resources WHERE resource = 'blocked' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	var refused sync.WaitGroup
	refused.Go(func() {
		if _, err := w.api.Acquire(t.Context(), client.AcquireRequest{Resource: "blocked", TTL: 10 * time.Second}); err == nil {
			t.Error("a lease was given though its fence could not be raised")
		}
	})
	fires("FencegateArmingFails")
	refused.Wait()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	unload()
	ended.Wait()
	kill := func(node int) {
		t.Helper()
		if err := w.nodes[node].Kill(); err != nil {
			t.Fatal(err)
		}
	}
	kill(2)
	fires("FencegateQuorumAtRisk")
	if err := w.nodes[2].Restart(t.Context()); err != nil { // without its data
		t.Fatal(err)
	}
	fires("FencegateNodeQuarantined")
	kill(0)
	fires("FencegateNotReady")
	w.stop()
	fires("FencegateGatewayDown")
	if len(want) > 0 {
		t.Errorf("nothing shows that these fire: %v", slices.Sorted(maps.Keys(want)))
	}
}

// alerts returns the names in alerts.yml.
func alerts(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		names[m[1]] = true
	}
	return names
}

// promtool accepts the committed files, and the alert about principals fires.
func TestPromtoolAcceptsTheFiles(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "config", "prometheus.yml"}, {"check", "rules", "alerts.yml"}, {"test", "rules", "alerts.test.yml"}} {
		if out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

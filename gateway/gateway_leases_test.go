//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// scraped returns the value of each series of /metrics.
func (c *client) scraped() map[string]string {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://"+c.g.Addrs().API+"/metrics", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	series := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			series[name] = value
		}
	}
	return series
}

func TestMetricsTellWhatHappenedToLeases(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	c := start(t, config(t, pg))
	l := c.acquire("r", "30s")
	c.want(http.StatusConflict, "POST", "/v1/leases", map[string]string{"resource": "r", "ttl": "30s"})
	c.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle})
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle}) // counts once
	lost := c.acquire("r", "30s")
	c.want(http.StatusOK, "POST", "/v1/resources/r/revoke", map[string]string{})
	c.want(http.StatusGone, "POST", "/v1/leases/renew", map[string]string{"handle": lost.handle})
	c.runOut(c.acquire("short", "30s"), pg)
	c.acquire("short", "60s")
	series := c.scraped()
	for name, want := range map[string]string{
		`fencegate_lease_wait_seconds_count`:                               "4",
		`fencegate_lease_hold_seconds_count{end="released"}`:               "1",
		`fencegate_lease_hold_seconds_count{end="lost"}`:                   "1",
		`fencegate_lease_renewals_total`:                                   "1",
		`fencegate_lease_failures_total{cause="held",operation="acquire"}`: "1",
	} {
		if series[name] != want {
			t.Errorf("%s is %q; want %q", name, series[name], want)
		}
	}
	held := c.acquire("held", "30s")
	testenv.Eventually(t, "the gauges are right", func() error { // a node may answer too late for one scrape
		if series := c.scraped(); series["fencegate_leases_held"] != "2" || series["fencegate_lease_waiters"] != "0" ||
			series[`fencegate_lease_nodes{state="admitted"}`] != "3" || series[`fencegate_lease_nodes{state="away"}`] != "0" {
			return fmt.Errorf("gauges: %v", series)
		}
		return nil
	})
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": held.handle})
	testenv.Eventually(t, "one lease is held after a release", func() bool { return c.scraped()["fencegate_leases_held"] == "1" })
	acquired := 0
	for name := range series {
		if strings.HasPrefix(name, `fencegate_lease_acquired_total{granted="`) {
			acquired++
		}
	}
	if acquired == 0 {
		t.Error("no word of the quorums' sizes")
	}
}

func TestRevocationFreesTheLockAtOnce(t *testing.T) {
	t.Parallel()
	c := start(t, config(t, testenv.Postgres(t)))
	l := c.acquire("r", "1m")
	c.want(http.StatusOK, "POST", "/v1/resources/r/revoke", map[string]string{"holder": "ops"})
	if c.locked("r") {
		t.Error("it is held still")
	}
	next := c.acquire("r", "1m")
	if next.token == l.token {
		t.Errorf("token %s twice", next.token)
	}
	c.want(http.StatusGone, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle})
	c.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": next.handle})
}

func TestAResourceShowsItsHolderAndWhoWaits(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	c := start(t, cfg)
	cfg.BlobDir = t.TempDir()
	other := start(t, cfg) // another gateway of the group
	l := c.acquire("r", "1m")
	done := make(chan answer, 1)
	go func() {
		defer close(done)
		done <- other.do("POST", "/v1/leases", map[string]string{"resource": "r", "ttl": "1m", "wait": "50s"})
	}()
	var state map[string]any
	testenv.Eventually(t, "the waiter is seen, and all nodes answer in time", func() bool {
		state, _ = c.want(http.StatusOK, "GET", "/v1/resources/r", nil).Body["lock"].(map[string]any)
		all, _ := state["servers"].([]any)
		return state["waiters"] == 1.0 && !slices.ContainsFunc(all, func(one any) bool {
			server, _ := one.(map[string]any)
			return server["error"] != nil
		})
	})
	ttl, _ := state["ttl_ms"].(float64)
	servers, _ := state["servers"].([]any)
	if state["holder"] == "" || state["token"] != l.token || ttl <= 0 || ttl > 60000 || len(servers) != 3 {
		t.Errorf("%v", state)
	}
	for _, server := range servers {
		if one, _ := server.(map[string]any); one["name"] == "" || one["error"] != nil {
			t.Errorf("%v", server)
		}
	}
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
	if a := <-done; a.Status != http.StatusCreated {
		t.Errorf("the waiter: %d %v", a.Status, a.Body)
	}
}

// counting stands for a source other than Redis nodes.
type counting struct {
	leasing.Source

	acquired int
	away     bool
}

func (s *counting) Acquire(ctx context.Context, wait leasing.Wait, all ...leasing.Request) ([]leasing.Lease, error) {
	if s.away {
		return nil, errors.Join(leasing.ErrUnavailable, errors.New("no leader"))
	}
	s.acquired++
	return s.Source.Acquire(ctx, wait, all...)
}

func TestLeasesMayComeFromAnotherSource(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	s := &counting{}
	nodes, prefix := cfg.RedisNodes, cfg.KeyPrefix
	cfg.RedisNodes = nil
	cfg.Leases = func(armer leasing.Armer) (leasing.Source, error) {
		l, err := lock.New(lock.Config{Nodes: nodes, KeyPrefix: lock.Prefix(prefix), Armer: armer, NodeTimeout: 10 * time.Second})
		if err != nil {
			return nil, err
		}
		s.Source = l.Source()
		initialise(t, l)
		return s, nil
	}
	c := start(t, cfg)
	l := c.acquire("r", "30s")
	if s.acquired != 1 || c.want(http.StatusOK, "GET", "/v1/resources/r", nil).text("token") != l.token {
		t.Errorf("the source was asked %d times", s.acquired)
	}
	s.away = true
	a := c.want(http.StatusServiceUnavailable, "POST", "/v1/leases", map[string]string{"resource": "other", "ttl": "30s"})
	if a.text("code") != "unavailable" {
		t.Errorf("%v", a.Body)
	}
}

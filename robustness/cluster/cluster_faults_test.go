package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/relay"
)

func TestASynchronousClusterAndItsFaults(t *testing.T) {
	t.Parallel()
	w := setup(t, cluster.Options{Redis: 3, Gateways: 2})
	for _, part := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"relays", relays},
		{"redis", redisFaults},
		{"gateways", gatewayFaults},
		{"disk", diskFull},
		{"clients", clientFaults},
		{"postgresql", postgresFaults},
		{"failover", failover},
		{"and back, after a freeze and in order", failoverBack},
		{"a failover that failed on its way", failoverFailed},
		{"sizes", sizes},
	} {
		part.run(t, w)
		if t.Failed() {
			t.Fatalf("in the part: %s", part.name)
		}
		must(t, w.Heal(t.Context()))
		w.works(part.name)
	}
	faults, err := w.Faulty()
	must(t, err)
	if len(faults) > 0 {
		t.Errorf("faulty: %q", faults)
	}
}

func relays(t *testing.T, w *world) {
	for _, from := range []string{"client-1", "gateway-1"} {
		if n := len(w.Net.Find(from, "redis-")); n != 3 {
			t.Errorf("%s has %d ways to the nodes", from, n)
		}
	}
	way := w.Net.Find("client-1", "gateway-1/api")[0]
	way.CutAfter(1)
	if _, err := w.acquire(0, "robust/r1-2"); err == nil {
		t.Error("the answer arrived although it was cut")
	}
	before := way.Carried(relay.Requests)
	w.works("through a relay")
	if way.Carried(relay.Requests) == before {
		t.Error("nothing went through the relay")
	}
	if got, want := w.values(), []string{"through a relay 0", "through a relay 1"}; !slices.Equal(got, want) {
		t.Errorf("effects %q; want %q", got, want)
	}
}

func redisFaults(t *testing.T, w *world) {
	n := w.Nodes[0] // it has appendfsync always
	direct := redis.NewClient(&redis.Options{Addr: n.Addr, MaxRetries: -1, ReadTimeout: time.Second})
	defer direct.Close()
	ctx := t.Context()
	get := func(key string) string { return direct.Get(ctx, key).Val() }
	must(t, direct.Set(ctx, "kept", "1", 0).Err())
	must(t, n.Keep())
	must(t, direct.Set(ctx, "later", "1", 0).Err())
	must(t, n.Kill())
	if direct.Ping(ctx).Err() == nil {
		t.Error("a killed node answers")
	}
	for _, c := range []struct {
		data cluster.Data
		want string
	}{{cluster.Own, "11"}, {cluster.Older, "1"}, {cluster.Empty, ""}} {
		must(t, n.Restart(ctx, c.data))
		if got := get("kept") + get("later"); got != c.want {
			t.Errorf("data %d: got %q, want %q", c.data, got, c.want)
		}
	}
	must(t, n.Freeze())
	if direct.Ping(ctx).Err() == nil {
		t.Error("a frozen node answers")
	}
	must(t, n.Thaw())
	must(t, n.SetClock(time.Hour))
	if now := direct.Time(ctx).Val(); time.Until(now) < 59*time.Minute {
		t.Errorf("its time is %v", now)
	}
	must(t, w.Nodes[1].Flush(ctx, cluster.Hash))
	must(t, w.Nodes[1].Flush(ctx, cluster.Scripts))
	must(t, w.Nodes[2].Flush(ctx, cluster.Everything))
	must(t, w.Nodes[2].Kill()) // Heal starts it
}

func gatewayFaults(t *testing.T, w *world) {
	g := w.Gateways[0]
	starts := g.Starts()
	must(t, g.Kill())
	w.eventually("it is started again", func() error { return g.Ready(t.Context()) })
	must(t, g.Stop(t.Context()))
	w.eventually("it is started again", func() error { return g.Ready(t.Context()) })
	if got := g.Starts() - starts; got != 2 {
		t.Errorf("started %d times", got)
	}
	must(t, g.Freeze())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if g.Ready(ctx) == nil {
		t.Error("a frozen gateway answers")
	}
	must(t, g.Thaw())
	w.eventually("it goes on", func() error { return g.Ready(t.Context()) })
	must(t, g.SetClock(-time.Hour))
	must(t, w.Spin(t.Context(), 1, 100*time.Millisecond))
	g.Absent(true)
	must(t, g.Kill()) // Heal restarts it
}

func diskFull(t *testing.T, w *world) {
	if w.Disk == nil {
		t.Log("the blobs have no file system of their own here")
		return
	}
	must(t, w.Disk.Fill(t.Context(), 0))
	path := filepath.Join(w.Disk.Path, "more")
	if err := os.WriteFile(path, make([]byte, 1<<16), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the disk is not full: %v", err)
	}
	must(t, w.Disk.Free())
	must(t, os.WriteFile(path, make([]byte, 1<<16), 0o600))
	must(t, os.Remove(path))
}

func clientFaults(t *testing.T, w *world) {
	k, err := w.StartClient(t.Context(), w.cfg)
	must(t, err)
	order := func(do string, patience time.Duration) error {
		report, err := k.Order(t.Context(), client.Order{Do: do}, patience)
		if err == nil && report.Done != do {
			err = fmt.Errorf("to %q it answers %q", do, report.Done)
		}
		return err
	}
	must(t, k.SetClock(2*time.Hour))
	must(t, order(client.Work, 10*time.Second))
	text, err := os.ReadFile(k.Histories()[0])
	must(t, err)
	var do string
	var at int64
	_, err = fmt.Sscan(string(text), &do, &at)
	must(t, err)
	if do != client.Work || time.Until(time.Unix(at, 0)) < time.Hour {
		t.Errorf("the history says %q", text)
	}
	must(t, k.Freeze())
	if err := order(client.Rest, 100*time.Millisecond); err == nil {
		t.Error("a frozen client answers")
	}
	must(t, k.Thaw())
	must(t, order(client.Work, 10*time.Second)) // a late answer is not taken for this one
	must(t, k.Kill())
	if k.Alive() || order(client.Rest, time.Second) == nil {
		t.Error("a killed client answers")
	}
	must(t, k.Restart(t.Context()))
	must(t, order(client.Rest, 10*time.Second))
	if len(k.Histories()) != 2 || !k.Alive() {
		t.Errorf("histories %q", k.Histories())
	}
	must(t, k.Stop(10*time.Second))
}

func postgresFaults(t *testing.T, w *world) {
	p := w.Primary()
	must(t, p.Freeze())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if conn, err := pgx.Connect(ctx, p.URL()); err == nil {
		t.Error("a frozen server answers")
		_ = conn.Close(ctx)
	}
	must(t, p.Thaw())
	before := w.works("after a freeze")
	must(t, p.Kill())
	if _, err := p.Connect(t.Context()); err == nil {
		t.Error("a killed server answers")
	}
	must(t, p.Start(t.Context()))
	if after := w.works("after a crash"); after.Token <= before.Token {
		t.Errorf("token %d after %d", after.Token, before.Token)
	}
	// A commit waits for the standby, and is not acknowledged without it.
	must(t, w.Standby().Freeze())
	l, err := w.acquire(0, "robust/r1-2")
	if err == nil {
		err = w.write(l, "without a standby")
	}
	if err == nil {
		t.Error("a commit did not wait for the standby")
	}
	must(t, w.Standby().Thaw())
	must(t, p.Kill()) // Heal restarts it
}

func sizes(t *testing.T, w *world) {
	got, err := w.Sizes(t.Context())
	must(t, err)
	for _, name := range []string{
		fmt.Sprintf("gateway-1#%d goroutines", w.Gateways[0].Starts()),
		fmt.Sprintf("gateway-2#%d kB", w.Gateways[1].Starts()),
		"redis-1 keys", "postgres sessions",
	} {
		if got[name] <= 0 {
			t.Errorf("%s: %v in %v", name, got[name], got)
		}
	}
}

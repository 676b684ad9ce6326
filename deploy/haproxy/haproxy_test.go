//go:build balancer && unix

package haproxy_test

import (
	"context"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Each gateway is killed, drained and paused in turn while clients use all three surfaces.
func TestClientsBehindABalancerOutliveTheirGateway(t *testing.T) {
	w := setup(t)
	surfaces := []string{"API", "PostgreSQL", "S3"}
	seen := map[string]*tally{}
	work, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	for i, load := range []func(context.Context, int, *tally){w.leases, w.rows, w.objects} {
		of := newTally()
		seen[surfaces[i]] = of
		for who := range 4 {
			clients.Go(func() { load(work, who, of) })
		}
	}
	for _, phase := range []struct {
		name    string
		to      func(i int)
		errors  map[string]int // the most errors allowed
		longest time.Duration
	}{
		// Undisturbed or beside a draining gateway, clients see errors
		// on PostgreSQL sessions only: these end between transactions.
		{"undisturbed", func(int) { w.rest(2 * time.Second) }, map[string]int{}, 15 * time.Second},
		{"drained", w.drain, map[string]int{"PostgreSQL": 50}, 15 * time.Second},
		{"killed", w.kill, map[string]int{"API": 50, "PostgreSQL": 50, "S3": 50}, 20 * time.Second},
		{"paused", w.pause, map[string]int{"API": 50, "PostgreSQL": 50, "S3": 50}, 25 * time.Second},
	} {
		for i := range gateways {
			phase.to(i)
		}
		for _, surface := range surfaces {
			requests, failed, kinds, longest := seen[surface].take()
			t.Logf("%-8s %-10s %6d requests, errors: %s; longest gap %v", phase.name, surface, requests, kinds, longest.Round(10*time.Millisecond))
			if requests == 0 || failed > phase.errors[surface] || longest > phase.longest {
				t.Errorf("%s, %s: that is worse than it may be", phase.name, surface)
			}
		}
	}
	stop()
	clients.Wait()
	for surface, of := range seen {
		for _, what := range of.wrong {
			t.Errorf("%s: %s", surface, what)
		}
	}
	w.countRows(seen["PostgreSQL"])
}

// countRows compares acknowledged rows with the stored ones.
func (w *world) countRows(of *tally) {
	pool, err := w.pg.Pool(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for who, acked := range of.acked {
		var n int
		if err := pool.QueryRow(w.t.Context(), "SELECT count(*) FROM load WHERE who = $1", strconv.Itoa(who)).Scan(&n); err != nil {
			w.t.Fatal(err)
		}
		if n < acked || n > acked+of.unknown[who] {
			w.t.Errorf("client %d: %d rows; %d were acknowledged and %d unknown", who, n, acked, of.unknown[who])
		}
	}
}

// rest lets the clients work for a time, in which the test counts their errors.
func (w *world) rest(d time.Duration) {
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-w.t.Context().Done():
	}
}

// settled is how long HAProxy needs to notice that a gateway is back.
const settled = 2 * time.Second

func (w *world) back(i int) {
	w.t.Helper()
	if err := w.run[i].Start(); err != nil {
		w.t.Fatal(err)
	}
	w.ready(i)
}

func (w *world) ready(i int) {
	w.t.Helper()
	if err := w.run[i].Ready(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.rest(settled)
}

func (w *world) kill(i int) {
	w.run[i].Kill()
	w.rest(time.Second)
	w.back(i)
}

// drain stops a gateway gracefully, which takes its lame-duck time.
func (w *world) drain(i int) {
	if err := w.run[i].Process().Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	select {
	case <-w.run[i].Process().Done():
	case <-time.After(lameDuck + 20*time.Second):
		w.t.Fatalf("gateway %d does not stop", i+1)
	}
	w.back(i)
}

// pause freezes a gateway for longer than HAProxy waits for it.
func (w *world) pause(i int) {
	if err := w.run[i].Process().Signal(syscall.SIGSTOP); err != nil {
		w.t.Fatal(err)
	}
	w.rest(6 * time.Second)
	if err := w.run[i].Process().Signal(syscall.SIGCONT); err != nil {
		w.t.Fatal(err)
	}
	w.ready(i)
}

//go:build unix

package continuity

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

var briefLeases = lock.Config{DefaultTTL: 2 * time.Second}

// brief is a program whose leases last two seconds by default, and five minutes at most.
func (g *group) brief(t *testing.T) program {
	t.Helper()
	p := g.open(t, g.pool, briefLeases)
	p.initialise(t)
	return p
}

// lease takes a lease; it tries again if the machine was too slow for the TTL.
func (p program) lease(t *testing.T, resource string, ttl time.Duration) *lock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		lease, err := p.locker.Acquire(ctx, resource, lock.WithTTL(ttl))
		if err == nil {
			return lease
		}
		if !errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
	}
}

func (g *group) flush(t *testing.T) {
	t.Helper()
	for _, n := range g.nodes {
		c := redis.NewClient(&redis.Options{Addr: n.Addr})
		if err := errors.Join(c.FlushAll(t.Context()).Err(), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// longestQuarantine returns the longest quarantine among the nodes, once each has one or is admitted.
func (p program) longestQuarantine(t *testing.T) (left time.Duration) {
	t.Helper()
	testenv.Eventually(t, "each node is in quarantine, or admitted", func() bool {
		left = 0
		for _, st := range p.locker.Status(t.Context()) {
			if st.Err != nil || !st.Admitted && st.Quarantine == 0 {
				return false
			}
			left = max(left, st.Quarantine)
		}
		return true
	})
	return left
}

func TestPostgreSQLRemembersHowLongLeasesMayLastThatAllNodesHaveForgotten(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	p := g.brief(t)
	first := p.lease(t, "orders/1001", 6*time.Second)
	lost := time.Now()
	g.flush(t)
	second := g.open(t, g.pool, briefLeases).lease(t, "orders/1001", 5*time.Second)
	if left := time.Until(first.Deadline()); left > 0 {
		t.Errorf("a second lease %v before the first was over", left)
	}
	if took := time.Since(lost); took > lock.DefaultMaxTTL/2 {
		t.Errorf("the next lease came after %v", took)
	}
	if said := ask(t, g.Server, `SELECT longest || ' ms, kept by ' || cardinality(kept) FROM fence.epochs`); said != "10000 ms, kept by 1" {
		t.Errorf("recorded: %s", said)
	}
	_ = second.Release(t.Context())

	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.try(t, "orders/2"); !errors.Is(err, lock.ErrNotRecorded) {
		t.Errorf("a lease of %v without PostgreSQL: %v", lock.DefaultMaxTTL, err)
	}
	ins, err := p.locker.Inspect(t.Context(), "orders/2")
	for tries := 0; errors.Is(err, lock.ErrNodeTimeout) && tries < 20; tries++ { // a query of the nodes has a second
		ins, err = p.locker.Inspect(t.Context(), "orders/2")
	}
	if err != nil || ins.Token != 0 || ins.Locked {
		t.Errorf("%+v, %v: a node granted what was not recorded", ins, err)
	}
}

// The backup is older than the record of a longer lease.
func TestARestoredRecordOfTheLongestTTLCountsForNothing(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	p := g.brief(t)
	_ = p.lease(t, "orders/1001", 2*time.Second).Release(t.Context())
	backup := copyOf(t, g.Server, false)
	first := p.lease(t, "orders/1001", time.Minute)
	if err := errors.Join(p.locker.Close(), p.Close(), g.Kill()); err != nil {
		t.Fatal(err)
	}
	restored := serve(t, backup)
	g.home.moveTo(restored)
	if said := ask(t, restored, `SELECT longest || ' ms, kept by ' || cardinality(kept) FROM fence.epochs`); said != "2000 ms, kept by 1" {
		t.Fatalf("the backup has recorded: %s: this test shows nothing", said)
	}
	second := g.open(t, g.pool, briefLeases)
	second.wantForgotten(t, "fencegate fence invalidate-all --yes")
	if _, err := second.RaiseLongest(t.Context(), "nodes", time.Second); !errors.As(err, new(*ForgottenError)) {
		t.Errorf("the record of a PostgreSQL that may have forgotten it: %v", err)
	}
	ask(t, restored, `SELECT raised::text FROM fence.invalidate_all()`)
	second.untilTrusted(t)
	g.flush(t)
	second.longestQuarantine(t)
	<-time.After(5 * time.Second) // by now it would be shortened
	if left := second.longestQuarantine(t); left < time.Until(first.Deadline()) || left < lock.DefaultMaxTTL/2 {
		t.Errorf("the quarantine ends in %v, a lease from before in %v", left, time.Until(first.Deadline()))
	}
}

// A standby may have replayed less than was recorded.
func TestAStandbyTellsNoLongestTTL(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	ask(t, g.Server, `SELECT record::text FROM fence.raise_longest('nodes', 1000)`)
	standby := serve(t, copyOf(t, g.Server, true))
	conn, err := pgx.Connect(t.Context(), standby.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	_, err = conn.Exec(t.Context(), `SELECT record FROM fence.raise_longest('nodes', 1000)`)
	if err == nil || !strings.Contains(err.Error(), "whose record of the longest TTL may lag") {
		t.Errorf("%v", err)
	}
}

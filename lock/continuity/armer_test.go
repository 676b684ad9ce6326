//go:build unix

package continuity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestAPromotedStandbyThatLaggedIsArmedOnlyAfterAnInvalidation(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	standby := serve(t, copyOf(t, g.Server, true))
	p, beside := g.program(t), g.program(t)
	lease, old := p.acquire(t, "orders/1001")
	testenv.Eventually(t, "the standby has the first fence", func() bool { return ask(t, standby, sqlToken, "orders/1001") == old.Token.String() })
	ask(t, standby, `ALTER SYSTEM SET primary_conninfo = ''`)
	ask(t, standby, `SELECT pg_reload_conf()::text`)
	testenv.Eventually(t, "the standby lags", func() bool { return ask(t, g.Server, `SELECT count(*)::text FROM pg_stat_replication`) == "0" })
	release(t, lease)
	lease, lost := beside.acquire(t, "orders/1001")
	release(t, lease)

	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	// The address moves too early. A standby has forgotten nothing, and can't be invalidated.
	g.home.moveTo(standby)
	testenv.Eventually(t, "the program has reached the standby", func() bool {
		_, err := p.try(t, "orders/2")
		if errors.As(err, new(*ForgottenError)) {
			t.Fatalf("on a standby: %v", err)
		}
		return errors.Is(err, StandbyError{})
	})
	ask(t, standby, `SELECT pg_promote()::text`)
	testenv.Eventually(t, "the standby is promoted", func() bool { return ask(t, standby, `SELECT pg_is_in_recovery()::text`) == "false" })
	if is := ask(t, standby, sqlToken, "orders/1001"); is != old.Token.String() {
		t.Fatalf("the fence stands at %s on the promoted standby: this test shows nothing", is)
	}
	late := g.program(t) // it has never seen the primary
	for _, one := range []program{late, p, beside} {
		one.wantForgotten(t, "fencegate fence invalidate-all --yes")
	}
	if is := ask(t, standby, sqlToken, "orders/1001"); is != old.Token.String() {
		t.Errorf("what was refused has raised the fence to %s", is)
	}

	ask(t, standby, `SELECT raised::text FROM fence.invalidate_all()`)
	for _, one := range []program{late, p, beside} {
		one.untilTrusted(t)
		lease, next := one.acquire(t, "orders/1001")
		if next.Token <= lost.Token {
			t.Errorf("the next token is %d after the lost %d", next.Token, lost.Token)
		}
		release(t, lease)
	}
}

func TestAServerThatWasSetBackIsArmedOnlyAfterAnInvalidation(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	p := g.program(t)
	lease, old := p.acquire(t, "orders/1001")
	backup := copyOf(t, g.Server, false)
	release(t, lease)
	lease, lost := p.acquire(t, "orders/1001")
	release(t, lease)
	if err := p.Check(t.Context()); err != nil { // counts and records the fences raised so far
		t.Fatal(err)
	}

	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	restored := serve(t, backup)
	g.home.moveTo(restored)
	if is := ask(t, restored, sqlToken, "orders/1001"); is != old.Token.String() {
		t.Fatalf("the fence stands at %s on the restored server: this test shows nothing", is)
	}
	p.wantForgotten(t, "fencegate fence invalidate-all --yes")
	g.program(t).wantForgotten(t, "fencegate fence invalidate-all --yes")

	ask(t, restored, `SELECT raised::text FROM fence.invalidate_all()`)
	p.untilTrusted(t)
	if _, next := p.acquire(t, "orders/1001"); next.Token <= lost.Token {
		t.Errorf("the next token is %d after the lost %d", next.Token, lost.Token)
	}
}

func TestACloseHasTheNodesRememberWhatWasRaised(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	p := g.program(t)
	backup := copyOf(t, g.Server, false)
	lease, _ := p.acquire(t, "orders/1001")
	release(t, lease)
	if err := errors.Join(p.locker.Close(), p.Close()); err != nil {
		t.Fatal(err)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	restored := serve(t, backup)
	// The new server has written more than the lost one, so only the count of beats reveals the loss.
	for range 64 {
		ask(t, restored, `SELECT pg_logical_emit_message(true, 'test', repeat('x', 100000))::text`)
	}
	g.home.moveTo(restored)
	g.program(t).wantForgotten(t, "fencegate fence invalidate-all --yes")
}

func TestACrashOfPostgreSQLIsNoForgetting(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	kept := copyOf(t, g.Server, false)
	before := serve(t, kept)
	g.home.moveTo(before)
	p := g.program(t)
	p.acquire(t, "orders/1001")
	if err := before.Kill(); err != nil {
		t.Fatal(err)
	}
	after := serve(t, kept) // with the data that it had
	g.home.moveTo(after)
	testenv.Eventually(t, "leases are granted again", func() error {
		_, err := p.try(t, "orders/2")
		if errors.As(err, new(*ForgottenError)) {
			t.Fatal(err)
		}
		return err
	})
}

// Both servers answer: the accepted one on the open connections, the other one on new connections.
func TestAnotherServerIsNeverArmedOverANewConnection(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	other := serve(t, copyOf(t, g.Server, true))
	ask(t, other, `SELECT pg_promote()::text`)
	testenv.Eventually(t, "the standby is promoted", func() bool { return ask(t, other, `SELECT pg_is_in_recovery()::text`) == "false" })
	p := g.program(t)
	p.acquire(t, "orders/1")

	g.home.moveTo(other)
	for _, idle := range p.pool.AcquireAllIdle(t.Context()) { // so that the next connection is new
		t.Cleanup(idle.Release)
	}
	if _, err := p.try(t, "orders/2"); !errors.As(err, new(*ForgottenError)) {
		t.Errorf("acquire over a new connection to another server: %v; want a ForgottenError", err)
	}
	if is := ask(t, other, `SELECT count(*)::text FROM fence.resources`); is != "0" {
		t.Errorf("the other server has %s fences", is)
	}
}

// The copy reports the same identity. Only its LSN differs from the original's, which still answers on the connections
// that were open before.
func TestACopyOfTheServerIsNeverArmed(t *testing.T) {
	t.Parallel()
	const more = `SELECT pg_logical_emit_message(true, 'test', repeat('x', 1000000))::text FROM generate_series(1, 8)`
	for name, ahead := range map[string]bool{"it has written less": false, "it has written more": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGroup(t)
			g.pool.MaxConns = 8
			copied := serve(t, copyOf(t, g.Server, false))
			p := g.program(t)
			p.acquire(t, "orders/1")
			ask(t, g.Server, more)
			if ahead {
				ask(t, copied, more)
				ask(t, copied, more)
			}
			if err := p.Check(t.Context()); err != nil { // counts and records the fences raised so far
				t.Fatal(err)
			}

			g.home.moveTo(copied)
			held := p.pool.AcquireAllIdle(t.Context()) // so that the next connection is new
			if len(held) == 0 {
				t.Fatal("no connection to the original is held: this test shows nothing")
			}
			_, err := p.try(t, "orders/2")
			for _, idle := range held {
				idle.Release()
			}
			if !errors.As(err, new(*ForgottenError)) {
				t.Errorf("acquire over a new connection to the copy: %v; want a ForgottenError", err)
			}
			for i := range 20 {
				var tries sync.WaitGroup
				for j := range 4 {
					tries.Go(func() { _, _ = p.try(t, fmt.Sprintf("late/%d/%d", i, j)) })
				}
				tries.Wait()
			}
			if is := ask(t, copied, `SELECT count(*)::text FROM fence.resources`); is != "0" {
				t.Errorf("the copy has %s fences", is)
			}
		})
	}
}

func TestAFirstBurstIsArmed(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	g.program(t).acquire(t, "orders/1001")
	g.pool.MaxConns = 8
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for burst := range 8 {
		a, err := Open(t.Context(), Config{Pool: g.pool, Nodes: g.nodes}) // it has no connection yet
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		start := make(chan struct{})
		var arms sync.WaitGroup
		for i := range 32 {
			arms.Go(func() {
				<-start
				arming := fence.Arming{Resource: fmt.Sprintf("burst/%d/%d", burst, i), Token: 1, SealHash: fence.NewSeal().Hash()}
				if err := a.Arm(ctx, arming); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		arms.Wait()
	}
}

// asked runs before the first look at a connection's server is answered.
type asked struct {
	once sync.Once
	do   func()
}

func (a *asked) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if q.SQL == sqlIdentity {
		a.once.Do(a.do)
	}
	return ctx
}

func (a *asked) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestAConnectionThatWasOpenedInDoubtBringsNoDoubtBack(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	p := g.program(t)
	p.mu.Lock()
	p.doubt()
	p.mu.Unlock()
	var settled int
	config := g.pool.ConnConfig.Copy()
	config.Tracer = &asked{do: func() { // another caller settles the doubt first
		var err error
		if settled, err = p.trust(t.Context()); err != nil {
			t.Error(err)
		}
	}}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if err := p.compare(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.accepted == nil || p.doubts != settled {
		t.Errorf("%d doubts, after %d when it was settled", p.doubts, settled)
	}
}

func TestTheHooksOfThePoolAreCalled(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	ask(t, g.Server, `CREATE ROLE quiet LOGIN NOINHERIT PASSWORD 'quiet' IN ROLE fence_gateway`)
	g.pool.ConnConfig.User, g.pool.ConnConfig.Password = "quiet", "quiet"
	g.pool.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SET ROLE fence_gateway`)
		return err
	}
	var before atomic.Int64
	g.pool.BeforeAcquire = func(context.Context, *pgx.Conn) bool { return before.Add(1) > 1 } //nolint:staticcheck // callers may still set it
	g.program(t).acquire(t, "orders/1001")
	if n := before.Load(); n < 2 {
		t.Errorf("BeforeAcquire was called %d times; want it called again after it refused a connection", n)
	}
}

// The connection is replaced by one to another server while the fence is raised.
func TestAFenceThatMayHaveBeenRaisedElsewhereIsUnknown(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	p := g.program(t)
	if err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := p.when(t.Context(), "arm", func() error {
		p.mu.Lock()
		p.doubt()
		p.mu.Unlock()
		return nil
	})
	if !errors.Is(err, ErrChanging) || !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("%v; want ErrChanging and fence.ErrUnknown", err)
	}
}

func TestLeasesThatComeFromElsewhereAreRefused(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	ask(t, g.Server, `SELECT fence.claim_source('postgres')`)
	_, err := g.program(t).try(t, "orders/1")
	if other, ok := errors.AsType[*OtherSourceError](err); !ok || other.Is != "postgres" || other.Ours != "redis" {
		t.Errorf("%v; want an OtherSourceError", err)
	}
}

func TestWhatOpenRefuses(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig("postgres:///app")
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]Config{
		"no pool":  {Nodes: []lock.Node{{Addr: "127.0.0.1:1"}}},
		"no nodes": {Pool: config},
	} {
		if _, err := Open(t.Context(), cfg); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v; want fence.ErrInvalid", name, err)
		}
	}
}

// The Fence's other methods work on the same connections.
func TestTheFenceOfAnArmer(t *testing.T) {
	t.Parallel()
	g := startGroup(t)
	p := g.program(t)
	_, grant := p.acquire(t, "orders/1001")
	record, err := p.Fence().Inspect(t.Context(), "orders/1001")
	if err != nil || record.Token != grant.Token {
		t.Errorf("Inspect: %+v, %v; want token %d", record, err, grant.Token)
	}
	all := []fence.Arming{{Resource: "orders/2", Token: 1, SealHash: fence.NewSeal().Hash()}, {Resource: "orders/3", Token: 1, SealHash: fence.NewSeal().Hash()}}
	if err := p.Arm(t.Context(), all...); err != nil {
		t.Error(err)
	}
	if _, err := p.Fence().Inspect(t.Context(), "orders/4"); !errors.Is(err, fence.ErrNoFence) {
		t.Errorf("Inspect: %v; want fence.ErrNoFence", err)
	}
	var _ *pgfence.Fence = p.Fence()
}

package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

// heldLock is a lock with one holder; it records which holder was released.
type heldLock struct {
	leasing.Source

	token fence.Token
	freed []fence.Token
	look  func()
}

func (h *heldLock) Inspect(_ context.Context, resources ...string) ([]leasing.Inspection, error) {
	if h.look != nil {
		h.look()
	}
	return []leasing.Inspection{{Resource: resources[0], Locked: true, Owner: "somebody", Token: h.token}}, nil
}

func (h *heldLock) Release(_ context.Context, ref leasing.Ref) error {
	h.freed = append(h.freed, ref.Token)
	return nil
}

// A revocation of a seen token revokes neither the fence nor the lock of a later holder.
func TestOnlyTheTokenThatWasSeenIsRevoked(t *testing.T) {
	t.Parallel()
	f := pgfence.New(testenv.PoolOf(t, testenv.Postgres(t).GatewayURL))
	arm := func(token fence.Token) {
		t.Helper()
		if err := f.Arm(t.Context(), fence.Arming{Resource: "orders/1", Token: token, SealHash: fence.NewSeal().Hash(), Holder: "worker"}); err != nil {
			t.Fatal(err)
		}
	}
	arm(34)
	for _, c := range []struct {
		name          string
		locked, armed fence.Token
		revoked       fence.Token
		freed         int
	}{
		{"somebody armed at the same time", 34, 36, 0, 0},
		{"somebody who has not armed yet holds the lock", 40, 0, 37, 0},
		{"nobody came", 37, 0, 38, 1},
	} {
		before, err := f.Inspect(t.Context(), "orders/1")
		if err != nil {
			t.Fatal(err)
		}
		var announced []fence.Token
		source := &heldLock{token: c.locked}
		if c.armed != 0 {
			source.look = func() { arm(c.armed) }
		}
		all := fences{fence: f, source: source, announce: func(_ string, token fence.Token) { announced = append(announced, token) }, log: slog.New(slog.DiscardHandler)}
		token, err := all.Revoke(t.Context(), "orders/1", "ops", before.Token)
		if token != c.revoked || errors.Is(err, fence.ErrNotRaised) != (c.revoked == 0) || c.revoked != 0 && err != nil {
			t.Errorf("%s: %d, %v", c.name, token, err)
		}
		if len(source.freed) != c.freed || (len(announced) > 0) != (c.revoked != 0) {
			t.Errorf("%s: freed %v, announced %v", c.name, source.freed, announced)
		}
		after, err := f.Inspect(t.Context(), "orders/1")
		if want := max(c.revoked, c.armed); err != nil || after.Token != want {
			t.Errorf("%s: the fence stands at %d, %v; want %d", c.name, after.Token, err, want)
		}
	}
}

// leaving returns a pool whose PostgreSQL goes away after one statement. It counts from the call of the second result.
func leaving(t *testing.T, url string) (*pgxpool.Pool, func()) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	var counts atomic.Bool
	var taken atomic.Int32
	gone := func() bool { return counts.Load() && taken.Load() > 1 }
	cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
		if counts.Load() {
			taken.Add(1)
		}
		return !gone(), nil
	}
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if gone() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
		}
		return dial(ctx, network, addr)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, func() { counts.Store(true) }
}

func TestARevocationThatWasCarriedOutIsNeverReportedAsUndone(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	direct := pgfence.New(testenv.PoolOf(t, pg.GatewayURL))
	if err := direct.Arm(t.Context(), fence.Arming{Resource: "orders/1", Token: 34, SealHash: fence.NewSeal().Hash(), Holder: "worker"}); err != nil {
		t.Fatal(err)
	}
	pool, count := leaving(t, pg.GatewayURL)
	var announced []fence.Token
	source := &heldLock{token: 34, look: count}
	all := fences{
		fence: pgfence.New(pool), source: source,
		announce: func(_ string, token fence.Token) { announced = append(announced, token) }, log: slog.New(slog.DiscardHandler),
	}
	token, err := all.Revoke(t.Context(), "orders/1", "ops", 0)
	undrained, ok := errors.AsType[*fence.UndrainedError](err)
	if !ok || undrained.Token != 35 || token != 35 {
		t.Errorf("%d, %v", token, err)
	}
	if _, undone := errors.AsType[*leasing.UnavailableError](err); undone {
		t.Errorf("nothing was done: %v", err)
	}
	if after, err := direct.Inspect(t.Context(), "orders/1"); err != nil || after.Token != 35 || len(announced) != 1 || len(source.freed) != 1 {
		t.Errorf("the fence stands at %d, %v; announced %v, freed %v", after.Token, err, announced, source.freed)
	}
}

func TestAnUnknownOutcomeIsNotReportedAsUndone(t *testing.T) {
	t.Parallel()
	_, away := pgx.Connect(t.Context(), "postgres://u@127.0.0.1:1/d")
	err := fenceError(t.Context(), "orders/1", errors.Join(fence.ErrUnknown, away))
	if _, undone := errors.AsType[*leasing.UnavailableError](err); undone || !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("%v", err)
	}
	if _, undone := errors.AsType[*leasing.UnavailableError](fenceError(t.Context(), "orders/1", away)); !undone {
		t.Error("what was never sent is not undone")
	}
}

package zklock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/zklock"
)

// pool is a pool with a login that arms, or writes.
func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// The session of a killed process outlives its lease's deadline, and then frees the resource.
func TestADeadHoldersWriteIsRefused(t *testing.T) {
	t.Parallel()
	pg, e := testenv.Postgres(t), ensemble(t, 1)
	fences := pgfence.New(pool(t, pg.GatewayURL))
	const doomedTTL = 10 * time.Second // much longer than taking it
	doomed, err := zklock.New(zklock.Config{Servers: e.Addrs(), Armer: fences, MaxTTL: doomedTTL})
	if err != nil {
		t.Fatal(err)
	}
	old := take(t, doomed, "r", doomedTTL)
	zklock.Vanish(doomed)
	s := source(t, zklock.Config{Servers: e.Addrs(), Armer: fences})
	next, err := leasing.One(s.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl}))
	if err != nil || next.Grant.Token <= old.Grant.Token || !old.Deadline.Passed() {
		t.Fatalf("%v, %v after %v, which was good for another %v", next.Grant, err, old.Grant, old.Deadline.Left())
	}
	writers := pool(t, pg.WriterURL)
	nothing := func(pgx.Tx) error { return nil }
	if err := pgfence.InTx(t.Context(), writers, old.Grant, nothing); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the old holder: %v; want ErrStale", err)
	}
	if err := pgfence.InTx(t.Context(), writers, next.Grant, nothing); err != nil {
		t.Errorf("the new holder: %v", err)
	}
}

// Requests that ZooKeeper did not answer are carried out later, and leave no lease behind.
func TestAnUnansweredAcquisitionLeavesNothing(t *testing.T) {
	t.Parallel()
	e := ensemble(t, 1)
	s := source(t, zklock.Config{Servers: e.Addrs()})
	warm := take(t, s, "r", ttl)
	if err := s.Release(t.Context(), warm.Ref()); err != nil {
		t.Fatal(err)
	}
	err := zklock.Create(t.Context(), s, leasing.Request{Resource: "r", TTL: ttl}, func() {
		if err := e.Servers[0].Freeze(); err != nil {
			t.Fatal(err)
		}
	})
	if err == nil {
		t.Error("a frozen server gave a lease")
	}
	if _, err := s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}); !errors.Is(err, leasing.ErrUnavailable) || !leasing.Retryable(err) {
		t.Errorf("%v; want a retryable ErrUnavailable", err)
	}
	if err := e.Servers[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	sooner, cancel := context.WithTimeout(t.Context(), ttl/2)
	defer cancel()
	if _, err := s.Acquire(sooner, leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl}); err != nil {
		t.Errorf("the resource is not free long before that lease would end: %v", err)
	}
}

func TestTokensCanBeRaised(t *testing.T) {
	t.Parallel()
	e := ensemble(t, 1)
	s, other := source(t, zklock.Config{Servers: e.Addrs()}), source(t, zklock.Config{Servers: e.Addrs()})
	take(t, other, "before", ttl)
	for _, above := range []fence.Token{1 << 41, 5} { // it never lowers tokens
		if err := s.RaiseTokens(t.Context(), above); err != nil {
			t.Fatal(err)
		}
	}
	if lease := take(t, other, "after", ttl); lease.Grant.Token <= 1<<41 {
		t.Errorf("token %d", lease.Grant.Token)
	}
	if err := s.RaiseTokens(t.Context(), -1); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("%v; want ErrInvalid", err)
	}
}

// Concurrent answers are handled in any order.
func TestAnExtensionThatIsHandledLateShortensNothing(t *testing.T) {
	t.Parallel()
	e := ensemble(t, 1)
	s, other := source(t, zklock.Config{Servers: e.Addrs()}), source(t, zklock.Config{Servers: e.Addrs()})
	lease := take(t, s, "r", ttl/2)
	if _, err := s.Extend(t.Context(), lease.Ref(), ttl); err != nil {
		t.Fatal(err)
	}
	given := zklock.Ends(s, lease.Owner)
	for _, earlier := range []clock.Instant{lease.Deadline, lease.Deadline.Now()} {
		if !zklock.Extended(s, lease.Owner, earlier) || given.After(zklock.Ends(s, lease.Owner)) {
			t.Errorf("the node is deleted in %v; a caller has it for %v", zklock.Ends(s, lease.Owner).Left(), given.Left())
		}
	}
	if shorter, err := s.Extend(t.Context(), lease.Ref(), 10*time.Second); err != nil || shorter.Left() > 10*time.Second || given.After(zklock.Ends(s, lease.Owner)) {
		t.Errorf("a shorter extension: good for %v, %v; the node is deleted in %v", shorter.Left(), err, zklock.Ends(s, lease.Owner).Left())
	}
	if _, err := other.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}); !errors.Is(err, leasing.ErrHeld) {
		t.Errorf("%v; want ErrHeld", err)
	}
	if err := s.Release(t.Context(), lease.Ref()); err != nil {
		t.Error(err)
	}
}

// The machine is suspended while a request that takes or extends a lease is on its way.
func TestADeadlineCountsFromBeforeTheRequestIsSent(t *testing.T) {
	t.Parallel()
	const late, setData, multi = 20 * time.Second, 5, 14
	cfg := zklock.Config{}
	machine := cfg.WithClock()
	cfg.Servers = []string{proxy(t, ensemble(t, 1).Addrs()[0], func(_ int, to io.Writer, from io.Reader) {
		for {
			request, err := frame(from)
			if err != nil {
				return
			}
			if does := binary.BigEndian.Uint32(request[4:]); does == setData || does == multi {
				machine.Suspend(late)
			}
			if _, err := to.Write(framed(request)); err != nil {
				return
			}
		}
	})}
	s := source(t, cfg)
	inTime := func(what string, deadline clock.Instant) {
		t.Helper()
		if left := deadline.Left(); left <= 0 || left > ttl-late {
			t.Errorf("%s: good for %v, %v after it was sent", what, left, late)
		}
	}
	lease := take(t, s, "r", ttl)
	inTime("a lease", lease.Deadline)
	extended, err := s.Extend(t.Context(), lease.Ref(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	inTime("an extension", extended)
	machine.Suspend(ttl)
	if _, err := s.Extend(t.Context(), lease.Ref(), ttl); !extended.Passed() || !errors.Is(err, leasing.ErrLost) {
		t.Errorf("after a suspension that no timer noticed: good for %v, extend: %v; want ErrLost", extended.Left(), err)
	}
}

// An operator revoked the digest user's right to delete.
func TestANodeThatCannotBeDeletedIsSaidOnce(t *testing.T) {
	t.Parallel()
	e := ensemble(t, 1)
	said := make(lines, 9)
	s := source(t, zklock.Config{
		Servers: e.Addrs(), Prefix: "/own", Digest: "locker:secret", Logger: slog.New(slog.NewTextHandler(said, nil)),
	})
	admin, _, err := zk.Connect(e.Addrs(), 10*time.Second, zk.WithLogger(log.New(io.Discard, "", 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.AddAuth("digest", []byte("locker:secret")); err != nil {
		t.Fatal(err)
	}
	lease := take(t, s, "r", ttl)
	rights := func(perms int32) {
		t.Helper()
		if _, err := admin.SetACL("/own/r:r", zk.DigestACL(perms, "locker", "secret"), -1); err != nil {
			t.Fatal(err)
		}
	}
	rights(zk.PermAll &^ zk.PermDelete)
	zklock.Expire(s, lease.Owner)
	testenv.Eventually(t, "it is said", func() bool { return len(said) > 0 })
	line := <-said
	if !strings.Contains(line, "correct the ACL") || !strings.Contains(line, "node=/own/r:r ") || strings.Contains(line, "secret") || strings.Contains(line, lease.Owner[:26]) {
		t.Errorf("%q; want the node and what to do, and no secret", line)
	}
	if _, err := s.Extend(t.Context(), lease.Ref(), ttl); !errors.Is(err, leasing.ErrLost) {
		t.Errorf("extend: %v; want ErrLost", err)
	}
	rights(zk.PermAll)
	if err := s.Release(t.Context(), lease.Ref()); err != nil {
		t.Errorf("release, when it may: %v", err)
	}
	take(t, s, "r", ttl)
	if len(said) > 0 {
		t.Errorf("once more: %q", <-said)
	}
}

// lines are the lines of a log.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// A server may lag behind the one that gave the lease, and not know the lease yet.
func TestALeaseIsFoundThroughEachServer(t *testing.T) {
	t.Parallel()
	var sources []*zklock.Source
	for _, addr := range ensemble(t, 3).Addrs() {
		sources = append(sources, source(t, zklock.Config{Servers: []string{addr}}))
	}
	for i := range 45 {
		taker, extender, releaser := sources[i%3], sources[(i+1)%3], sources[(i+2)%3]
		lease, err := leasing.One(taker.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}))
		if err != nil {
			t.Fatalf("lease %d: acquire: %v", i, err)
		}
		if _, err := extender.Extend(t.Context(), lease.Ref(), ttl); err != nil {
			t.Fatalf("lease %d: extend: %v", i, err)
		}
		if err := releaser.Release(t.Context(), lease.Ref()); err != nil {
			t.Fatalf("lease %d: release: %v", i, err)
		}
	}
}

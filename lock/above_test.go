package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// recovered runs Init above a token until it succeeds, and returns the nodes that were admitted.
func recovered(t *testing.T, l *lock.Locker, above fence.Token) (nodes []string) {
	t.Helper()
	before := status(t, l)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	must(t, patiently(ctx, func() error { return l.Init(ctx, lock.Above(above)) }))
	return admittedSince(t, l, before)
}

func admittedSince(t *testing.T, l *lock.Locker, before []lock.NodeStatus) (nodes []string) {
	t.Helper()
	for i, st := range status(t, l) {
		if st.Admitted && !before[i].Admitted {
			nodes = append(nodes, st.Name)
		}
	}
	return nodes
}

// unrecovered runs Init above a token when it must change nothing.
func unrecovered(t *testing.T, cfg lock.Config, l *lock.Locker, above fence.Token) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := patiently(ctx, func() error {
		return l.Init(ctx, lock.Above(above))
	})
	if !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("init above %d: %v", above, err)
	}
	for _, n := range cfg.Nodes {
		if client(t, n.Addr).HExists(t.Context(), cfg.KeyPrefix+":h", "@pending").Val() {
			t.Errorf("init above %d began to admit %s", above, n.Name)
		}
	}
}

// Most of the nodes are lost, and the epoch is not kept elsewhere. The operator provides the highest token.
func TestAGroupThatLostItsMajorityIsRecoveredAboveAToken(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.MaxTTL = 2 * time.Second
	l := started(t, cfg)
	var last fence.Token
	for range 5 {
		lease := acquire(t, l, "r")
		last = token(t, lease)
		release(t, lease)
	}
	use(t, cfg, "r", last)         // a quorum has counted it
	unrecovered(t, cfg, l, last+1) // nothing is lost
	restart(t, servers[0], nil)
	lost := time.Now()
	restart(t, servers[1], nil)
	if err := l.Admit(t.Context(), "node-1"); err == nil {
		t.Fatal("admitted without a token")
	}
	for _, above := range []fence.Token{-1, 0, last - 1, last, 1 << 53, 1<<63 - 1} { // node-3 has recorded last
		unrecovered(t, cfg, l, above)
	}
	above := last + 5<<32 // from a lost node
	admitted := recovered(t, l, above)
	if passed := time.Since(lost); passed < cfg.MaxTTL {
		t.Errorf("admitted %v after the loss", passed)
	}
	if len(admitted) != 2 || admitted[0] != "node-1" || admitted[1] != "node-2" {
		t.Errorf("admitted %q", admitted)
	}
	next := acquire(t, l, "r")
	if token(t, next) <= above {
		t.Errorf("token %d after %d", token(t, next), above)
	}
	release(t, next)
	restart(t, servers[2], nil) // the recovered nodes keep the epoch now
	readmitAmong(t, l, "node-3")
	unrecovered(t, cfg, l, above*2)
}

// A lost node with its data may have higher tokens than the operator knows of.
func TestAGroupIsNotRecoveredBelowWhatALostNodeRemembers(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.MaxTTL = 2 * time.Second
	l := started(t, cfg)
	lease := acquire(t, l, "r")
	last := token(t, lease)
	release(t, lease)
	restart(t, servers[0], nil)
	unrecovered(t, cfg, l, last)
	first := recovered(t, l, last+1)
	if st := status(t, l)[0]; len(first) != 1 || st.Epoch != 1 {
		t.Errorf("%q, epoch %d", first, st.Epoch)
	}
	restart(t, servers[0], nil)
	unrecovered(t, cfg, l, 1<<32) // its base
	use(t, cfg, "minted", 1<<52)  // far above it
	unrecovered(t, cfg, l, 1<<52)
}

// interrupted runs Init above a token on an admission without a quarantine, if there is one, for a part of the new quarantine.
func interrupted(t *testing.T, l *lock.Locker) {
	t.Helper()
	for tries := 0; ; tries++ {
		must(t, l.EndQuarantine(t.Context(), "node-1"))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		err := l.Init(ctx, lock.Above(100))
		cancel()
		switch {
		case errors.Is(err, lock.ErrQuarantined) && errors.Is(err, context.DeadlineExceeded):
			return
		case tries == 5, !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, lock.ErrNodeTimeout):
			t.Fatalf("init: %v", err) // otherwise a node answered too late
		}
	}
}

// An admission left by a first start has no quarantine. That of an interrupted recovery has one, which continues.
func TestARecoveryWaitsForAWholeQuarantineOnce(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	cfg.MaxTTL = 8 * time.Second
	l := started(t, cfg)
	release(t, acquire(t, l, "r"))
	restart(t, servers[0], nil)
	interrupted(t, l)
	pending := func() string {
		return client(t, servers[0].Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "@pending").Val()
	}
	begun, other := pending(), locker(t, cfg)
	for tries := 0; ; tries++ {
		lost := time.Now()
		interrupted(t, l)
		if now := pending(); now == begun {
			t.Error("an admission without a quarantine was continued")
		}
		begun = pending()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := other.Init(ctx, lock.Above(100))
		cancel()
		if errors.Is(err, lock.ErrNodeTimeout) && tries < 5 {
			continue // after its quarantine an admission is not continued
		}
		must(t, err)
		if passed := time.Since(lost); passed < cfg.MaxTTL {
			t.Errorf("admitted %v after the loss", passed)
		}
		break
	}
	if is := client(t, servers[0].Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "@incarnation").Val(); is != begun || begun == "" {
		t.Errorf("begun as %q, admitted as %q", begun, is)
	}
}

// The first run was told of shorter leases than there are.
func TestARecoveryThatIsToldOfLongerLeasesWaitsAnew(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	started(t, cfg)
	restart(t, servers[0], nil)
	run := func(maxTTL time.Duration) (left time.Duration) {
		t.Helper()
		cfg.MaxTTL = maxTTL
		l := locker(t, cfg)
		must(t, patiently(t.Context(), func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := l.Init(ctx, lock.Above(100))
			if errors.Is(err, lock.ErrQuarantined) {
				return nil
			}
			if errors.Is(err, context.DeadlineExceeded) {
				err = lock.ErrNodeTimeout // it answered too late
			}
			return err
		}))
		return status(t, l)[0].Quarantine
	}
	if left := run(5 * time.Minute); left > 5*time.Minute || left < 4*time.Minute {
		t.Errorf("the quarantine lasts %v", left)
	}
	if left := run(30 * time.Minute); left < 29*time.Minute {
		t.Errorf("leases last up to 30m, and the quarantine ends in %v", left)
	}
	pending := func() string {
		return client(t, servers[0].Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "@pending").Val()
	}
	begun := pending()
	if left := run(5 * time.Minute); left < 28*time.Minute || pending() != begun {
		t.Errorf("told of shorter leases, the quarantine ends in %v", left)
	}
}

// recovering runs Init above a token, and calls during once the quarantines of the first nodes, the lost ones, run.
func recovering(t *testing.T, cfg lock.Config, lost int, l *lock.Locker, above fence.Token, during func()) ([]string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	before := status(t, l)
	done := make(chan error, 1)
	go func() { done <- l.Init(ctx, lock.Above(above)) }()
	eventually(t, 20*time.Second, "the quarantines have begun", func() bool {
		for _, n := range cfg.Nodes[:lost] {
			if !client(t, n.Addr).HExists(ctx, cfg.KeyPrefix+":h", "@pending").Val() {
				return false
			}
		}
		return true
	})
	during()
	err := <-done
	return admittedSince(t, l, before), err
}

// forgets is the loss of a node that keeps its connections.
func forgets(t *testing.T, n lock.Node) {
	t.Helper()
	must(t, client(t, n.Addr).FlushAll(t.Context()).Err())
	must(t, client(t, n.Addr).ScriptFlush(t.Context()).Err())
}

// A node is lost again during the wait. The others are a quorum.
func TestARecoveryAdmitsTheNodesAfterOneThatFails(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, 2*time.Second, func(maxTTL time.Duration) error {
		cfg, servers, l := recoverable(t, maxTTL)
		for _, s := range servers {
			restart(t, s, nil)
		}
		admitted, err := recovering(t, cfg, 3, l, 100, func() { forgets(t, cfg.Nodes[1]) })
		if len(admitted) == 3 || errors.Is(err, lock.ErrNodeTimeout) {
			return fmt.Errorf("admitted %q: %w", admitted, err) // the loss came too late, or an answer
		}
		if err == nil || !strings.Contains(err.Error(), "node-2") || !slices.Equal(admitted, []string{"node-1", "node-3"}) {
			t.Fatalf("admitted %q: %v", admitted, err)
		}
		release(t, acquire(t, l, "r"))
		readmitAmong(t, l, "node-2")
		return nil
	})
}

// recoverable starts a group of three nodes whose quarantine lasts maxTTL.
func recoverable(t *testing.T, maxTTL time.Duration) (lock.Config, []*redisserver.Server, *lock.Locker) {
	t.Helper()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.MaxTTL, cfg.DefaultTTL = maxTTL, time.Second
	return cfg, servers, started(t, cfg)
}

// Two nodes are lost again during the wait. The third one alone would be of no use, and remember more than the token.
func TestARecoveryAdmitsNoNodesOrAQuorum(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, 2*time.Second, func(maxTTL time.Duration) error {
		cfg, servers, l := recoverable(t, maxTTL)
		for _, s := range servers {
			restart(t, s, nil)
		}
		const above = 100
		admitted, err := recovering(t, cfg, 3, l, above, func() {
			forgets(t, cfg.Nodes[1])
			forgets(t, cfg.Nodes[2])
		})
		if len(admitted) > 1 || errors.Is(err, lock.ErrNodeTimeout) {
			return fmt.Errorf("admitted %q: %w", admitted, err)
		}
		if err == nil || len(admitted) != 0 {
			t.Errorf("admitted %q: %v", admitted, err)
		}
		if again := recovered(t, l, above); len(again) != 3 {
			t.Errorf("the same again: admitted %q", again)
		}
		return nil
	})
}

// Programs that try in vain during the wait count up on the node that was not lost.
func TestARecoveryIsNotRefusedForWhatIsCountedMeanwhile(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, 2*time.Second, func(maxTTL time.Duration) error {
		cfg, servers, l := recoverable(t, maxTTL)
		lease := acquire(t, l, "r")
		above := token(t, lease) + 3
		release(t, lease)
		restart(t, servers[0], nil)
		restart(t, servers[1], nil)
		counted := func() fence.Token {
			n, _ := client(t, servers[2].Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "c:r").Int64()
			return fence.Token(n)
		}
		admitted, err := recovering(t, cfg, 2, l, above, func() {
			for range 20 {
				if _, err := l.TryAcquire(t.Context(), "r"); err == nil {
					t.Error("granted by one of three nodes")
				}
			}
		})
		most := counted()
		if most <= above || errors.Is(err, lock.ErrNodeTimeout) {
			return fmt.Errorf("node-3 has counted to %d: this test shows nothing: %w", most, err)
		}
		if err != nil || len(admitted) != 2 {
			t.Fatalf("admitted %q: %v", admitted, err)
		}
		next := acquire(t, l, "r")
		if token(t, next) <= most {
			t.Errorf("token %d above %d", token(t, next), most)
		}
		release(t, next)
		return nil
	})
}

// A node was admitted by an earlier recovery. It cannot tell whether that one was cut short, or others were admitted
// as well and are lost again.
func TestARecoveryThatIsRefusedNamesATokenThatIsHighEnough(t *testing.T) {
	t.Parallel()
	cfg, _ := own(t, 3, redisserver.Config{})
	cfg.MaxTTL, cfg.DefaultTTL = 2*time.Second, time.Second
	l := started(t, cfg)
	for _, n := range cfg.Nodes {
		forgets(t, n)
	}
	recovered(t, l, 100)
	lease := acquire(t, l, "r")
	last := token(t, lease)
	release(t, lease)
	forgets(t, cfg.Nodes[1])
	forgets(t, cfg.Nodes[2])
	var err error
	must(t, patiently(t.Context(), func() error {
		if err = l.Init(t.Context(), lock.Above(100)); errors.Is(err, lock.ErrNodeTimeout) {
			return err
		}
		return nil
	}))
	const named = 2<<32 - 1
	if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprintf("repeat with %d", int64(named))) {
		t.Fatalf("init: %v", err)
	}
	recovered(t, l, named)
	next := acquire(t, l, "r")
	if token(t, next) <= last || token(t, next) <= named {
		t.Errorf("token %d after %d", token(t, next), last)
	}
	release(t, next)
}

func TestAGroupWhoseEpochIsKeptElsewhereIsNotRecovered(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	release(t, acquire(t, l, "r"))
	restart(t, servers[0], nil)
	unrecovered(t, cfg, l, 100)
	cfg.Epochs = nil
	unrecovered(t, cfg, locker(t, cfg), 2<<32) // above its base; the node has the record
}

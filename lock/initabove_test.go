package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// recovered runs Init above a token, which waits for the quarantine, and returns the nodes that were admitted.
func recovered(t *testing.T, l *lock.Locker, above fence.Token) (nodes []string) {
	t.Helper()
	before := status(t, l)
	must(t, admin.Of(l).InitAbove(t.Context(), above))
	return admittedSince(t, l, before)
}

func admittedSince(t *testing.T, l *lock.Locker, before []admin.NodeStatus) (nodes []string) {
	t.Helper()
	for i, st := range status(t, l) {
		if st.Admitted && !before[i].Admitted {
			nodes = append(nodes, st.Name)
		}
	}
	return nodes
}

// unrecovered runs Init above a token when it must change nothing.
func unrecovered(t *testing.T, l *lock.Locker, nodes []*memredis.Node, above fence.Token) {
	t.Helper()
	if err := admin.Of(l).InitAbove(t.Context(), above); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("init above %d: %v", above, err)
	}
	for i, n := range nodes {
		if hashField(t, n, "@pending") != "" {
			t.Errorf("init above %d began to admit node %d", above, i+1)
		}
	}
}

// Most of the nodes are lost, and the epoch is not kept elsewhere. The operator provides the highest token.
func TestAGroupThatLostItsMajorityIsRecoveredAboveAToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		var last fence.Token
		for range 5 {
			lease := acquireOnAll(t, l, "r")
			last = token(t, lease)
			release(t, lease)
		}
		unrecovered(t, l, nodes, last+1) // nothing is lost
		nodes[0].Lose(t)
		nodes[1].Lose(t)
		lost := time.Now()
		reconnect(t, l)
		if err := admin.Of(l).Admit(t.Context(), "node-1"); err == nil {
			t.Fatal("admitted without a token")
		}
		for _, above := range []fence.Token{-1, 0, last - 1, last, 1 << 53, 1<<63 - 1} { // node-3 has recorded last
			unrecovered(t, l, nodes, above)
		}
		above := last + 5<<32 // from a lost node
		if admitted := recovered(t, l, above); !slices.Equal(admitted, []string{"node-1", "node-2"}) {
			t.Errorf("admitted %q", admitted)
		}
		lasted(t, "admitted again after", time.Since(lost), lock.DefaultMaxTTL, time.Second)
		next := acquire(t, l, "r")
		if token(t, next) <= above {
			t.Errorf("token %d after %d", token(t, next), above)
		}
		release(t, next)
		nodes[2].Lose(t) // the recovered nodes keep the epoch now
		reconnect(t, l)
		must(t, admin.Of(l).Admit(t.Context(), "node-3"))
		unrecovered(t, l, nodes, above*2)
	})
}

// A lost node with its data may have higher tokens than the operator knows of.
func TestAGroupIsNotRecoveredBelowWhatALostNodeRemembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		last := token(t, lease)
		release(t, lease)
		nodes[0].Restart(t)
		reconnect(t, l)
		unrecovered(t, l, nodes, last)
		first := recovered(t, l, last+1)
		if st := admin.Of(l).Status(t.Context())[0]; len(first) != 1 || st.Epoch != 1 {
			t.Errorf("%q, epoch %d", first, st.Epoch)
		}
		nodes[0].Restart(t)
		reconnect(t, l)
		unrecovered(t, l, nodes, 1<<32) // its base
		setCounter(t, nodes[0], "minted", 1<<52)
		unrecovered(t, l, nodes, 1<<52)
	})
}

// soon is how long an interrupted recovery takes.
const soon = 3 * time.Second

// interrupted runs Init above a token for a part of the quarantine.
func interrupted(t *testing.T, l *lock.Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := admin.Of(l).InitAbove(ctx, 100); !errors.Is(err, lock.ErrQuarantined) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("init: %v", err)
	}
}

// An admission left by a first start has no quarantine. That of an interrupted recovery has one, which continues.
func TestARecoveryWaitsForAWholeQuarantineOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		l := started(t, cfg)
		release(t, acquire(t, l, "r"))
		nodes[0].Lose(t)
		reconnect(t, l)
		must(t, l.BeginInit(t.Context()))
		left := hashField(t, nodes[0], "@pending")
		lost := time.Now()
		interrupted(t, l)
		begun := hashField(t, nodes[0], "@pending")
		if begun == left || left == "" {
			t.Errorf("begun as %q, and an admission without a quarantine was %q", begun, left)
		}
		must(t, admin.Of(locker(t, cfg)).InitAbove(t.Context(), 100))
		lasted(t, "admitted again after", time.Since(lost), lock.DefaultMaxTTL, time.Second)
		if is := hashField(t, nodes[0], "@incarnation"); is != begun {
			t.Errorf("begun as %q, admitted as %q", begun, is)
		}
	})
}

// The first run was given a shorter longest TTL than the group has.
func TestARecoveryThatIsToldOfLongerLeasesWaitsAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		started(t, cfg)
		nodes[0].Lose(t)
		run := func(maxTTL time.Duration) (left time.Duration) {
			t.Helper()
			cfg.MaxTTL = maxTTL
			l := locker(t, cfg)
			interrupted(t, l)
			return admin.Of(l).Status(t.Context())[0].Quarantine
		}
		if left := run(5 * time.Minute); left != 5*time.Minute-soon {
			t.Errorf("the quarantine lasts %v", left)
		}
		if left := run(30 * time.Minute); left != 30*time.Minute-soon {
			t.Errorf("leases last up to 30m, and the quarantine ends in %v", left)
		}
		begun := hashField(t, nodes[0], "@pending")
		if left := run(5 * time.Minute); left != 30*time.Minute-2*soon || hashField(t, nodes[0], "@pending") != begun {
			t.Errorf("given a shorter longest TTL, the quarantine ends in %v", left)
		}
	})
}

// recovering runs Init above a token, and calls during once it waits for the quarantines.
func recovering(t *testing.T, l *lock.Locker, above fence.Token, during func()) ([]string, error) {
	t.Helper()
	before := admin.Of(l).Status(t.Context())
	done := make(chan error, 1)
	go func() { done <- admin.Of(l).InitAbove(t.Context(), above) }()
	time.Sleep(lock.DefaultMaxTTL / 2)
	during()
	err := <-done
	return admittedSince(t, l, before), err
}

// forgets is the loss of a node that keeps its connections.
func forgets(t *testing.T, n *memredis.Node) {
	t.Helper()
	flush(t, n)
	must(t, n.Client(t).ScriptFlush(t.Context()).Err())
}

// A node is lost again during the wait. The others are a quorum.
func TestARecoveryAdmitsTheNodesAfterOneThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		for _, n := range nodes {
			forgets(t, n)
		}
		admitted, err := recovering(t, l, 100, func() { forgets(t, nodes[1]) })
		if err == nil || !strings.Contains(err.Error(), "node-2") || !slices.Equal(admitted, []string{"node-1", "node-3"}) {
			t.Fatalf("admitted %q: %v", admitted, err)
		}
		release(t, acquire(t, l, "r"))
		must(t, admin.Of(l).Admit(t.Context(), "node-2"))
	})
}

// Two nodes are lost again during the wait. The third one alone would be of no use, and remember more than the token.
func TestARecoveryAdmitsNoNodesOrAQuorum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		for _, n := range nodes {
			forgets(t, n)
		}
		const above = 100
		admitted, err := recovering(t, l, above, func() {
			forgets(t, nodes[1])
			forgets(t, nodes[2])
		})
		if err == nil || len(admitted) != 0 {
			t.Errorf("admitted %q: %v", admitted, err)
		}
		if again := recovered(t, l, above); len(again) != 3 {
			t.Errorf("the same again: admitted %q", again)
		}
	})
}

// Programs whose tries fail during the wait count up on the node that was not lost.
func TestARecoveryIsNotRefusedForWhatIsCountedMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		above := token(t, lease) + 3
		release(t, lease)
		forgets(t, nodes[0])
		forgets(t, nodes[1])
		admitted, err := recovering(t, l, above, func() {
			// A try that fails at once, at the two others, may send this node nothing.
			for counted := 0; fence.Token(counted) <= above; {
				if _, err := l.TryAcquire(t.Context(), "r"); err == nil {
					t.Fatal("granted by one of three nodes")
				}
				counted, _ = strconv.Atoi(hashField(t, nodes[2], "c:r"))
			}
		})
		if err != nil || len(admitted) != 2 {
			t.Fatalf("admitted %q: %v", admitted, err)
		}
		if next := acquire(t, l, "r"); token(t, next) <= 1<<32 {
			t.Errorf("token %d is in the epoch that was lost", token(t, next))
		}
	})
}

// A node was admitted by an earlier recovery. It cannot tell whether that one was cut short, or others were admitted
// as well and are lost again.
func TestARecoveryThatIsRefusedNamesATokenThatIsHighEnough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		for _, n := range nodes {
			forgets(t, n)
		}
		recovered(t, l, 100)
		lease := acquire(t, l, "r")
		last := token(t, lease)
		release(t, lease)
		forgets(t, nodes[1])
		forgets(t, nodes[2])
		const named = 2<<32 - 1
		err := admin.Of(l).InitAbove(t.Context(), 100)
		if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprintf("repeat with %d", int64(named))) {
			t.Fatalf("init: %v", err)
		}
		recovered(t, l, named)
		next := acquire(t, l, "r")
		if token(t, next) <= last || token(t, next) <= named {
			t.Errorf("token %d after %d", token(t, next), last)
		}
		release(t, next)
	})
}

func TestAGroupWhoseEpochIsKeptElsewhereIsNotRecovered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		release(t, acquire(t, l, "r"))
		nodes[0].Restart(t)
		reconnect(t, l)
		unrecovered(t, l, nodes, 100)
		cfg.Epochs = nil
		unrecovered(t, locker(t, cfg), nodes, 2<<32) // above its base; the node has the record
	})
}

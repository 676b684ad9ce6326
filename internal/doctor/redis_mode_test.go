//go:build unix

package doctor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// everything is an Armer that accepts every arming, and counts epochs.
type everything struct{ epoch int64 }

func (*everything) Arm(context.Context, ...fence.Arming) error { return nil }
func (*everything) End(context.Context, fence.Ending) error    { return nil }
func (*everything) Floor(string) fence.Token                   { return 0 }
func (*everything) Raised(context.Context) (bool, error)       { return false, nil }

func (e *everything) RaiseEpoch(_ context.Context, above int64) (int64, error) {
	e.epoch = max(e.epoch, above) + 1
	return e.epoch, nil
}

// group starts nodes, has them admitted, and returns a Locker for them.
func group(t *testing.T, n int, bestEffort, durable bool) (*lock.Locker, []lock.Node) {
	t.Helper()
	servers := testenv.OwnRedisWith(t, n, redisserver.Config{AppendOnly: redisserver.Always})
	list := make([]lock.Node, n)
	for i, s := range servers {
		list[i] = lock.Node{Addr: s.Addr, Durable: durable}
	}
	kept := &everything{}
	l, err := lock.New(lock.Config{Nodes: list, Armer: kept, Epochs: kept, BestEffort: bestEffort, NodeTimeout: 20 * time.Second, MaxTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	testenv.Eventually(t, "the nodes are admitted", func() error { return admin.Of(l).Init(t.Context()) }) // a node may answer too late
	return l, list
}

func examined(t *testing.T, list []lock.Node) []Finding {
	t.Helper()
	return patiently(t, Config{RedisNodes: list, KeyPrefix: lock.DefaultKeyPrefix})
}

// unsaid fails if a finding concerns the mode.
func unsaid(t *testing.T, findings []Finding) {
	t.Helper()
	for _, f := range findings {
		if f.Check == "redis.mode" {
			t.Errorf("%+v", f)
		}
	}
}

func TestABestEffortGroupIsNamed(t *testing.T) {
	t.Parallel()
	_, list := group(t, 3, true, false)
	want(t, examined(t, list), "redis.mode", OK, "best effort", "the fence lets only the newest write")
}

func TestNothingIsSaidOfAStrictGroup(t *testing.T) {
	t.Parallel()
	_, list := group(t, 1, false, false)
	unsaid(t, examined(t, list))
}

// A node that was unavailable when the others were marked still has the old mode.
func TestNodesOfBothModesAreAFailure(t *testing.T) {
	t.Parallel()
	_, list := group(t, 3, true, false)
	_, other := group(t, 1, false, false)
	list[2] = other[0]
	want(t, examined(t, list), "redis.mode", Fail, list[0].Addr+", "+list[1].Addr+" best effort", list[2].Addr+" strict", "nodes mode strict")
}

func TestADurableNodeIsSaidToBe(t *testing.T) {
	t.Parallel()
	l, list := group(t, 1, false, true)
	findings := examined(t, list)
	want(t, findings, "redis.mode", OK, "admitted at once", "never restore it")
	if Worst(findings) != OK {
		t.Errorf("%+v", findings)
	}
	undeclared := nodes(list[0].Addr)
	want(t, examined(t, undeclared), "redis.mode", Warn, "was admitted as durable", "--redis-durable")

	operator := redis.NewClient(&redis.Options{Addr: list[0].Addr})
	defer func() { _ = operator.Close() }()
	if err := operator.ConfigSet(t.Context(), "no-appendfsync-on-rewrite", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	findings = examined(t, list)
	want(t, findings, "redis.mode", Warn, `no-appendfsync-on-rewrite is "yes"`, "quarantined for the longest TTL")
	want(t, findings, "redis.admitted", OK)
	// It is not durable, because its settings are not.
	again := errors.Join(operator.ScriptFlush(t.Context()).Err(), admin.Of(l).Admit(t.Context(), list[0].Addr))
	if err := errors.Join(again, operator.ConfigSet(t.Context(), "no-appendfsync-on-rewrite", "no").Err()); err != nil {
		t.Fatal(err)
	}
	want(t, examined(t, list), "redis.mode", Warn, "was not when it was admitted", "Restart its server once")
	unsaid(t, examined(t, undeclared))
}

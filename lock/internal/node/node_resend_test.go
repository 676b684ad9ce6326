package node_test

import (
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// At maxmemory a script that acquires fails, and a release of the same batch with it.
func TestAReleaseBesideAnAcquireThatFailsIsMadeAlone(t *testing.T) {
	t.Parallel()
	m := newMessages(t, lock.Config{Nodes: []lock.Node{{Addr: testenv.OwnRedis(t, 1)[0].Addr}}, NodeTimeout: patient})
	a, b := node.NewID(), node.NewID()
	m.run(0, m.on("mine", node.OpAcquire, a))
	if err := m.client(0).ConfigSet(t.Context(), "maxmemory", "100kb").Err(); err != nil {
		t.Fatal(err)
	}
	got := m.run(0, m.on("mine", node.OpRelease, a), m.on("new", node.OpAcquire, b))
	if got[0].Err != nil || got[0].N != 1 {
		t.Errorf("release: %+v", got[0])
	}
	if got[1].Err == nil {
		t.Errorf("acquire without memory: %+v", got[1])
	}
}

// A node that takes no writes answers a release with an error. It is owed the release until it takes them again, also
// on a connection that stays up.
func TestARefusedReleaseIsMadeOnceTheNodeTakesWrites(t *testing.T) {
	t.Parallel()
	m := newMessages(t, lock.Config{Nodes: []lock.Node{{Addr: testenv.OwnRedis(t, 1)[0].Addr}}, NodeTimeout: patient})
	a := node.NewID()
	m.run(0, m.on("mine", node.OpAcquire, a), m.on("other", node.OpAcquire, a))
	c := m.client(0)
	if err := c.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for i, r := range m.run(0, m.on("mine", node.OpRelease, a), m.on("other", node.OpRelease, a)) {
		if r.Err == nil {
			t.Errorf("release %d without replicas: %+v", i, r)
		}
	}
	if err := c.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "both locks are released", func() bool {
		n, err := c.Exists(t.Context(), m.keys.Lock("mine"), m.keys.Lock("other")).Result()
		return err == nil && n == 0
	})
}

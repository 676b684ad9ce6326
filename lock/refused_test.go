package lock

import (
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
)

// At maxmemory a script that acquires fails, and a release of the same batch with it.
func TestAReleaseBesideAnAcquireThatFailsIsMadeAlone(t *testing.T) {
	t.Parallel()
	m := newMessages(t, Config{Nodes: []Node{{Addr: testenv.OwnRedis(t, 1)[0].Addr}}, NodeTimeout: Patient})
	a, b := newID(), newID()
	m.run(0, m.on("mine", opAcquire, a))
	if err := m.l.nodes[0].client.ConfigSet(t.Context(), "maxmemory", "100kb").Err(); err != nil {
		t.Fatal(err)
	}
	got := m.run(0, m.on("mine", opRelease, a), m.on("new", opAcquire, b))
	if got[0].err != nil || got[0].n != 1 {
		t.Errorf("release: %+v", got[0])
	}
	if got[1].err == nil {
		t.Errorf("acquire without memory: %+v", got[1])
	}
}

// A node that takes no writes answers a release with an error. It is owed the release until it takes them again, also
// on a connection that stays up.
func TestARefusedReleaseIsMadeOnceTheNodeTakesWrites(t *testing.T) {
	t.Parallel()
	m := newMessages(t, Config{Nodes: []Node{{Addr: testenv.OwnRedis(t, 1)[0].Addr}}, NodeTimeout: Patient})
	a := newID()
	m.run(0, m.on("mine", opAcquire, a), m.on("other", opAcquire, a))
	c := m.l.nodes[0].client
	if err := c.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for i, r := range m.run(0, m.on("mine", opRelease, a), m.on("other", opRelease, a)) {
		if r.err == nil {
			t.Errorf("release %d without replicas: %+v", i, r)
		}
	}
	if err := c.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "both locks are released", func() bool {
		n, err := c.Exists(t.Context(), m.l.keys.lock("mine"), m.l.keys.lock("other")).Result()
		return err == nil && n == 0
	})
}

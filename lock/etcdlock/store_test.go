package etcdlock_test

import (
	"errors"
	"math"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// A cluster that was restored from a snapshot has lost leases, and its revision has fallen.
func TestARestoredClusterGivesNoTokenTwice(t *testing.T) {
	t.Parallel()
	pg, before := testenv.Postgres(t), cluster(t, 1, "")
	fences := pgfence.New(pool(t, pg.GatewayURL))
	s := source(t, etcdlock.Config{Client: client(t, before.Endpoints()...), Armer: fences})
	old := take(t, s, "r", ttl)
	if err := s.Release(t.Context(), old.Ref()); err != nil {
		t.Fatal(err)
	}
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	save := exec.CommandContext(t.Context(), "etcdctl", "--endpoints", before.Members[0].Addr, "snapshot", "save", snapshot)
	save.Env = append(save.Environ(), "ETCDCTL_API=3")
	if out, err := save.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var last leasing.Lease
	for range 5 {
		last = take(t, s, "r", ttl)
		if err := s.Release(t.Context(), last.Ref()); err != nil {
			t.Fatal(err)
		}
	}
	held := take(t, s, "held", ttl)

	after := cluster(t, 1, snapshot)
	unarmed := source(t, etcdlock.Config{Client: client(t, after.Endpoints()...)})
	fallen := take(t, unarmed, "r", ttl)
	if fallen.Grant.Token > last.Grant.Token {
		t.Fatalf("token %d after %d: the revision has not fallen, so this shows nothing", fallen.Grant.Token, last.Grant.Token)
	}
	if err := unarmed.Release(t.Context(), fallen.Ref()); err != nil {
		t.Fatal(err)
	}
	armed := source(t, etcdlock.Config{Client: client(t, after.Endpoints()...), Armer: fences})
	for _, before := range []leasing.Lease{last, held} {
		resource := before.Grant.Resource
		if next := take(t, armed, resource, ttl); next.Grant.Token <= before.Grant.Token {
			t.Errorf("%s: token %d after %d", resource, next.Grant.Token, before.Grant.Token)
		}
	}
	// an operator calls it if there is no Armer
	if err := unarmed.RaiseTokens(t.Context(), 1<<41); err != nil {
		t.Fatal(err)
	}
	if next := take(t, unarmed, "another", ttl); next.Grant.Token <= 1<<41 {
		t.Errorf("token %d", next.Grant.Token)
	}
	if err := unarmed.RaiseTokens(t.Context(), 5); err != nil { // never lowers
		t.Fatal(err)
	}
	if next := take(t, unarmed, "one more", ttl); next.Grant.Token <= 1<<41 {
		t.Errorf("token %d after a lower base", next.Grant.Token)
	}
	for _, bad := range []fence.Token{0, -1, math.MaxInt64} {
		if err := unarmed.RaiseTokens(t.Context(), bad); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("raise to %d: %v; want ErrInvalid", bad, err)
		}
	}
}

func TestABaseThatIsNoNumberGrantsNothing(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, "")
	etcd := client(t, c.Endpoints()...)
	if _, err := etcd.Put(t.Context(), "fencegate/base", "many"); err != nil {
		t.Fatal(err)
	}
	refused(t, source(t, etcdlock.Config{Client: etcd}), `fencegate/base holds "many"`)
}

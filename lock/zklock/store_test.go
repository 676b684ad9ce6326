package zklock_test

import (
	"testing"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/zklock"
)

// An ensemble that starts empty has lost leases, and its transaction ids have fallen.
func TestAnEnsembleThatForgotGivesNoTokenTwice(t *testing.T) {
	t.Parallel()
	pg, before := testenv.Postgres(t), ensemble(t, 1)
	fences := pgfence.New(pool(t, pg.GatewayURL))
	s := source(t, zklock.Config{Servers: before.Addrs(), Armer: fences})
	var last leasing.Lease
	for range 5 {
		last = take(t, s, "r", ttl)
		if err := s.Release(t.Context(), last.Ref()); err != nil {
			t.Fatal(err)
		}
	}
	held := take(t, s, "held", ttl)

	after := ensemble(t, 1)
	unarmed := source(t, zklock.Config{Servers: after.Addrs()})
	fallen := take(t, unarmed, "r", ttl)
	if fallen.Grant.Token > last.Grant.Token {
		t.Fatalf("token %d after %d: the transaction ids have not fallen, so this shows nothing", fallen.Grant.Token, last.Grant.Token)
	}
	if err := unarmed.Release(t.Context(), fallen.Ref()); err != nil {
		t.Fatal(err)
	}
	armed := source(t, zklock.Config{Servers: after.Addrs(), Armer: fences})
	for _, before := range []leasing.Lease{last, held} {
		resource := before.Grant.Resource
		if next := take(t, armed, resource, ttl); next.Grant.Token <= before.Grant.Token {
			t.Errorf("%s: token %d after %d", resource, next.Grant.Token, before.Grant.Token)
		}
	}
}

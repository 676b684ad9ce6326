package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// Each wait is shorter than the time between two renewals; together they are longer than the TTL. A renewal has two thirds
// of the TTL.
func TestLeasesThatAreHadOutliveManyShortWaits(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const ttl = 12 * time.Second
	all := []leasing.Request{{Resource: "r", TTL: ttl}}
	for i := range 9 {
		r := fmt.Sprintf("r/%d", i+1)
		all = append(all, leasing.Request{Resource: r, TTL: ttl})
		w.exec(t, `SELECT fence.take_lease($1, 'another', $2, sha256('seal'), '', 0, false)`, r, (time.Duration(i+1) * ttl / 8).Microseconds())
	}
	begun := time.Now()
	leases, err := w.Acquire(t.Context(), leasing.UntilDone, all...)
	waited := time.Since(begun)
	if err != nil {
		t.Fatal(err)
	}
	if waited < ttl {
		t.Errorf("it waited for %v only: this test shows nothing", waited)
	}
	for _, lease := range leases {
		if left := lease.Deadline.Left(); left <= 0 {
			t.Errorf("the lease of %s ended %v before it was returned", lease.Grant.Resource, -left)
		}
	}
}

func TestWhoWaitsForMoreHearsOfALeaseThatIsLost(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.take_lease('b', 'another', 3600000000, sha256('seal'), '', 0, false)`)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	outcome := make(chan error, 1)
	go func() {
		_, err := w.Acquire(ctx, leasing.UntilDone, []leasing.Request{{Resource: "a", TTL: 6 * time.Second}, {Resource: "b", TTL: ttl}}...)
		outcome <- err
	}()
	until(t, "it has a", func() bool {
		return ask[int](t, w, `SELECT count(*) FROM fence.leases WHERE resource = 'a' AND owner <> ''`) == 1
	})
	w.exec(t, `SELECT fence.revoke('a')`)
	if err := <-outcome; !errors.Is(err, leasing.ErrLost) || ctx.Err() != nil {
		t.Errorf("%v; want ErrLost while b is held", err)
	}
}

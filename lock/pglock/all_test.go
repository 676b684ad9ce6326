package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// Each wait is shorter than the TTL; together they are longer.
func TestLeasesThatAreHadOutliveManyShortWaits(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for short := 3 * time.Second; ; short *= 2 { // on a busy machine a renewal takes seconds
		err := outlives(t, w, short)
		if err == nil {
			return
		}
		if short > 20*time.Second {
			t.Fatal(err)
		}
		t.Logf("leases of %v: %v", short, err)
	}
}

// outlives acquires several leases that others hold for a while. The error says that one of them ended too early.
func outlives(t *testing.T, w world, short time.Duration) error {
	t.Helper()
	all := []leasing.Request{{Resource: fmt.Sprint(short), TTL: short}}
	for i := range 6 {
		r := fmt.Sprintf("%v/%d", short, i+1)
		all = append(all, leasing.Request{Resource: r, TTL: short})
		w.exec(t, `SELECT fence.take_lease($1, 'another', $2, sha256('seal'), '', 0, false)`, r, (time.Duration(i+1) * short / 5).Microseconds())
	}
	leases, err := w.AcquireAll(t.Context(), all)
	now := time.Now()
	if errors.Is(err, leasing.ErrLost) {
		return err
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, lease := range leases {
		if !now.Before(lease.Deadline) {
			return fmt.Errorf("the lease of %s ended %v before it was returned", lease.Grant.Resource, now.Sub(lease.Deadline))
		}
	}
	return nil
}

func TestWhoWaitsForMoreHearsOfALeaseThatIsLost(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.take_lease('b', 'another', 3600000000, sha256('seal'), '', 0, false)`)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	outcome := make(chan error, 1)
	go func() {
		_, err := w.AcquireAll(ctx, []leasing.Request{{Resource: "a", TTL: 6 * time.Second}, {Resource: "b", TTL: ttl}})
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

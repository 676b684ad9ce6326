package pglock_test

import (
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
		w.exec(t, `SELECT fence.take_lease($1, 'another', $2, sha256('seal'), '', false)`, r, (time.Duration(i+1) * ttl / 8).Microseconds())
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

package pglock_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/pglock"
)

func TestALeaseThatEndsBeforeItsAnswerIsLost(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE OR REPLACE FUNCTION fence.take_leases(p_resources text[], p_owners text[], p_ttls bigint[], p_seal_hashes bytea[], p_holders text[], p_behind boolean[])
		RETURNS TABLE (n integer, taken boolean, held boolean, token bigint, holder text, left_us bigint) LANGUAGE sql AS $$ SELECT 1, true, false, NULL::bigint, NULL::text, NULL::bigint $$`)
	if _, err := w.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}); !errors.Is(err, leasing.ErrLost) {
		t.Errorf("%v; want ErrLost", err)
	}
}

func TestAnAnswerIsNoBrokenConnection(t *testing.T) {
	t.Parallel()
	for _, err := range []error{&leasing.HeldError{Resource: "r"}, fmt.Errorf("x: %w", leasing.ErrLost)} {
		if pglock.Lost(err) {
			t.Errorf("%v: it was answered", err)
		}
	}
}

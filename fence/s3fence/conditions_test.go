package s3fence_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/s3fence"
)

func TestConditionsMayComeWithTheCall(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	call := func(staged s3fence.Staged, args string) (key string, err error) {
		err = pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), fmt.Sprintf("SELECT bucket || '/' || key || ' ' || etag || ' ' || size FROM fence.publish($1::text::uuid%s)", args), staged.ID).Scan(&key)
		})
		return key, err
	}
	first, second := w.record(g, name), w.stage(g, name, "abc")
	if got, err := call(first, ", if_none_match => true"); got != "reports/2026-11.csv e 1" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	_, err := call(second, ", if_none_match => true")
	wantState(t, "there is one", err, "ZO002")
	_, err = call(second, ", if_match => 'f'")
	wantState(t, "another one", err, "ZO002")
	_, err = call(second, ", if_match => '!f'")
	wantState(t, "what is no ETag", err, "22023")
	conditional := w.stage(g, name, "abc", s3fence.IfMatch("e"))
	_, err = call(conditional, ", if_match => 'f'")
	wantState(t, "two conditions", err, "ZO002")
	if got, err := call(second, ", if_match => 'e'"); got != "reports/2026-11.csv 900150983cd24fb0d6963f7d28e17f72 3" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	_, err = call(conditional, ", if_none_match => NULL")
	wantState(t, "it has changed", err, "ZO002")
}

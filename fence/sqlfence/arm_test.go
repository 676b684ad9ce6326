package sqlfence_test

import (
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

// The first attempt takes effect, its answer is lost, and the server is read-only for the retry.
func TestWhatARetryDoesNotSettleIsUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drivers["pgx"])
	for _, name := range []string{"Arm", "End"} {
		resource := "commit/" + name // the proxy cuts at the request that contains this word
		g := w.acquire(t, resource, 6)
		var p proxy
		db := drivers["pgx"](t, through(t, &p, w.pg.GatewayURL))
		db.SetMaxOpenConns(1)
		f := sqlfence.New(db)
		calls := map[string]func(fence.Token) error{
			"Arm": func(token fence.Token) error {
				return f.Arm(t.Context(), fence.Arming{Resource: resource, Token: token, SealHash: fence.NewSeal().Hash()})
			},
			"End": func(token fence.Token) error {
				return f.End(t.Context(), fence.Ending{Resource: resource, Token: token - 1, SealHash: g.Seal.Hash()})
			},
		}
		// The statements are prepared by calls that change nothing.
		if err := calls[name](6); !errors.Is(err, fence.ErrNotRaised) && !errors.Is(err, fence.ErrStale) {
			t.Fatal(err)
		}
		w.readOnly(t, "on")
		p.atCommit(true)
		err := calls[name](7)
		w.readOnly(t, "off")
		if !errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		testenv.Eventually(t, "the first attempt takes effect", func() bool {
			r, err := w.fence.Inspect(t.Context(), resource)
			return err == nil && (r.Token == 7 || r.EndedAt != nil)
		})
	}
}

// readOnly makes later sessions of the database read-only, or not.
func (w world) readOnly(t testing.TB, value string) {
	t.Helper()
	_, err := w.admin.Exec(t.Context(), `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = `+value+`', current_database()); END $$`)
	if err != nil {
		t.Fatal(err)
	}
}

// Several fences are raised in one transaction: all or none.
func TestSeveralFencesAreRaisedTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, drivers["pgx"])
	to := func(resource string, token fence.Token) fence.Arming {
		return fence.Arming{Resource: resource, Token: token, SealHash: fence.NewSeal().Hash()}
	}
	if err := w.fence.Arm(t.Context(), to("b", 5), to("a", 5)); err != nil {
		t.Fatal(err)
	}
	low, ok := errors.AsType[*fence.NotRaisedError](w.fence.Arm(t.Context(), to("a", 6), to("b", 5)))
	if !ok || low.Resource != "b" || low.Recorded != 5 {
		t.Errorf("%+v; want that b was not raised", low)
	}
	for _, resource := range []string{"a", "b"} {
		if r, err := w.fence.Inspect(t.Context(), resource); err != nil || r.Token != 5 {
			t.Errorf("%s stands at %d, %v; want 5", resource, r.Token, err)
		}
	}
	if err := w.fence.Arm(t.Context(), to("a", 7), to("a", 8)); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("one twice: %v", err)
	}
}

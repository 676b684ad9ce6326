package pgfence_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

func TestRevokeEndsTheHoldersRights(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if _, err := w.fence.Revoke(t.Context(), orders, "admin"); !errors.Is(err, fence.ErrNoFence) {
		t.Errorf("nothing to revoke: %v", err)
	}
	if _, err := w.fence.Revoke(t.Context(), "", "admin"); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("malformed: %v", err)
	}
	g := w.acquire(t, orders, 34)
	tx := paused(t, w, pgx.ReadCommitted, g)
	token, err := w.fence.Revoke(t.Context(), orders, "admin")
	if err != nil || token != 35 {
		t.Fatalf("token %d, %v", token, err)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("a write in flight survived")
	}
	wantCode(t, attempt(t, w.session(t), pgx.ReadCommitted, orders, g.Presented()), "ZF001")
	record, err := w.fence.Inspect(t.Context(), orders)
	if err != nil || record.Token != 35 || !record.Sealed || record.Holder != "admin" {
		t.Errorf("%+v, %v", record, err)
	}
	w.acquire(t, orders, 36)
}

func TestInspectAndListShowNoSeal(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if _, err := w.fence.Inspect(t.Context(), "none"); !errors.Is(err, fence.ErrNoFence) {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"a/1", "a/2", "a/ü", "a/\U0010ffff", "b/1", "a%_", `a\`} {
		w.acquire(t, name, 5)
	}
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          string
	}{
		{"a/", "", 10, "a/1 a/2 a/ü a/\U0010ffff"},
		{"a/", "a/1", 2, "a/2 a/ü"},
		{"", "", 3, `a%_ a/1 a/2`},
		{"a%", "", 10, "a%_"},
		{`a\`, "", 10, `a\`},
		{"c", "", 10, ""},
	} {
		records, err := w.fence.List(t.Context(), c.prefix, c.after, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, r := range records {
			names = append(names, r.Resource)
			if r.Token != 5 || !r.Sealed || r.Holder != "test" || time.Since(r.ArmedAt).Abs() > time.Hour {
				t.Errorf("%+v", r)
			}
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("below %q after %q: %q, want %q", c.prefix, c.after, got, c.want)
		}
	}
}

func TestEpochsOnlyRise(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			epoch, err := w.fence.RaiseEpoch(t.Context(), int64(i))
			mu.Lock()
			defer mu.Unlock()
			if err != nil || epoch <= int64(i) || seen[epoch] {
				t.Errorf("above %d: %d, %v", i, epoch, err)
			}
			seen[epoch] = true
		})
	}
	wg.Wait()
	if epoch, err := w.fence.RaiseEpoch(t.Context(), 2097150); err != nil || epoch != 2097151 {
		t.Errorf("%d, %v", epoch, err)
	}
	for _, above := range []int64{0, 2097151, 1 << 62} {
		if _, err := w.fence.RaiseEpoch(t.Context(), above); err == nil || !strings.Contains(err.Error(), "no epoch is left") {
			t.Errorf("above %d: %v", above, err)
		}
	}
}

//go:build unix

package testenv_test

import (
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestDatabasesAreSeparate(t *testing.T) {
	t.Parallel()
	a, b := testenv.Postgres(t).Pool(t), testenv.Postgres(t).Pool(t)
	if _, err := a.Exec(t.Context(), "CREATE TABLE mine (v int)"); err != nil {
		t.Fatal(err)
	}
	var seen bool
	if err := b.QueryRow(t.Context(), "SELECT to_regclass('mine') IS NOT NULL").Scan(&seen); err != nil || seen {
		t.Fatalf("the other test's table is seen: %v, %v", seen, err)
	}
}

func TestKeySpacesAreSeparate(t *testing.T) {
	t.Parallel()
	a, b := testenv.Redis(t, 3), testenv.Redis(t, 5)
	if a.Prefix == b.Prefix || len(a.Addrs) != 3 || len(b.Addrs) != 5 {
		t.Fatalf("%+v %+v", a, b)
	}
}

func TestOwnNodesCanBeKilledFrozenAndRestarted(t *testing.T) {
	t.Parallel()
	n := testenv.OwnRedis(t, 1)[0]
	for _, step := range []func() error{n.Freeze, n.Thaw, n.Kill, func() error { return n.Restart(t.Context()) }} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

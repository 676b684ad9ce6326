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

func TestLoginsHaveTheirRolesAndNoOthers(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	for address, want := range map[string]string{
		pg.GatewayURL: "false true false",
		pg.WriterURL:  "false false true",
		pg.OtherURL:   "false false false",
		pg.As(t, "fence_gateway", "fence_writer"): "false true true",
	} {
		var got string
		if err := testenv.PoolOf(t, address).QueryRow(t.Context(), `SELECT concat_ws(' ', rolsuper::text,
			pg_has_role(current_user, 'fence_gateway', 'member')::text, pg_has_role(current_user, 'fence_writer', 'member')::text)
			FROM pg_roles WHERE rolname = current_user`).Scan(&got); err != nil || got != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}

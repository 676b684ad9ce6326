package pgfence_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// A database of a single-byte encoding lists its fences, too, whose names may hold its last character.
func TestFencesAreListedInADatabaseThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	w := setup(t)
	name := w.pg.Database + "_latin1"
	w.exec(t, `CREATE DATABASE `+name+` TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'`)
	t.Cleanup(func() {
		if _, err := w.admin.Exec(context.WithoutCancel(t.Context()), `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	address, err := url.Parse(w.pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/" + name
	if err := migrate.Up(t.Context(), address.String(), migrate.Fence); err != nil {
		t.Fatal(err)
	}
	pool := testenv.PoolOf(t, address.String())
	for _, resource := range []string{"a/1", "a/ÿÿ", "b/1"} {
		if _, err := pool.Exec(t.Context(), `SELECT fence.arm($1, 5, sha256('seal'), 'test')`, resource); err != nil {
			t.Fatal(err)
		}
	}
	records, err := pgfence.New(pool).List(t.Context(), "a/", "", 10)
	var names []string
	for _, r := range records {
		names = append(names, r.Resource)
	}
	if got := strings.Join(names, " "); err != nil || got != "a/1 a/ÿÿ" {
		t.Errorf("%q, %v", got, err)
	}
}

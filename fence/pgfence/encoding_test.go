package pgfence_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/migrate"
)

// Which character is the last one that a name may hold depends on the encoding, and chr() knows it of some only.
func TestFencesAreListedInADatabaseThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for encoding, c := range map[string]struct {
		last   string
		length int // in characters of the database
	}{"LATIN1": {"ÿ", 1}, "WIN1252": {"ÿ€", 2}, "EUC_JP": {"熙", 1}, "EUC_KR": {"詰", 1}, "SQL_ASCII": {"\U0010ffff", 4}} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			pool := w.encoded(t, encoding)
			for _, resource := range []string{"a/1", "a/" + c.last, "b/1"} {
				if _, err := pool.Exec(t.Context(), `SELECT fence.arm($1, 5, sha256('seal'), 'test')`, resource); err != nil {
					t.Fatal(err)
				}
			}
			records, err := pgfence.New(pool).List(t.Context(), "a/", "", 10)
			var names []string
			for _, r := range records {
				names = append(names, r.Resource)
			}
			if got := strings.Join(names, " "); err != nil || got != "a/1 a/"+c.last {
				t.Errorf("%q, %v", got, err)
			}
			var length int // of a name in its encoding
			if err := pool.QueryRow(t.Context(), `SELECT max(length(resource)) - 2 FROM fence.fences`).Scan(&length); err != nil || length != c.length {
				t.Errorf("%q has %d characters, %v; want %d", c.last, length, err, c.length)
			}
		})
	}
}

// encoded returns a pool for a migrated database of its own with another encoding.
func (w world) encoded(t *testing.T, encoding string) *pgxpool.Pool {
	t.Helper()
	name := w.pg.Database + "_" + strings.ToLower(encoding)
	w.exec(t, `CREATE DATABASE `+name+` TEMPLATE template0 LOCALE 'C' ENCODING '`+encoding+`'`)
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
	config, err := pgxpool.ParseConfig(address.String())
	if err != nil {
		t.Fatal(err)
	}
	pgfence.Configure(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

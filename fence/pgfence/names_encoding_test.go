package pgfence_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

// Which character is the last one that a name may hold depends on the encoding, and chr() knows it of some only.
func TestFencesAreListedInADatabaseThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	for encoding, c := range map[string]struct {
		last   string
		length int // in characters of the database
	}{"LATIN1": {"ÿ", 1}, "WIN1252": {"ÿ€", 2}, "EUC_JP": {"熙", 1}, "EUC_KR": {"詰", 1}, "SQL_ASCII": {"\U0010ffff", 4}} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			pool := encoded(t, encoding)
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

// encoded returns a pool for a migrated database of another encoding.
func encoded(t *testing.T, encoding string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(testenv.PostgresIn(t, encoding).URL)
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

//go:build unix

package migrate_test

import (
	"strings"
	"testing"

	"github.com/fencegate/fencegate/internal/pooler/poolertest"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// A pooler in transaction mode would keep the settings and the lock of a migration for its other clients.
func TestAMigrationRefusesAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 3} {
		pg := setup(t)
		pooled := poolertest.InTransactionMode(t, pg.URL, size)
		refused := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), "name PostgreSQL itself") {
				t.Errorf("%s through %d sessions: %v", what, size, err)
			}
		}
		refused("up", migrate.Up(t.Context(), pooled, migrate.All))
		wantStatus(t, pg.URL, false, false)
		up(t, pg.URL)
		refused("down", migrate.Down(t.Context(), pooled, migrate.All, false))
		wantStatus(t, pg.URL, true, false)

		// Other clients of the pooler find their settings, and nobody holds the lock.
		other := testenv.PoolOf(t, pooled+"&default_query_exec_mode=exec")
		for range 2 * size {
			var path string
			var locks int
			err := other.QueryRow(t.Context(), `SELECT current_setting('search_path'), (SELECT count(*) FROM pg_locks l
 JOIN pg_database d ON d.oid = l.database WHERE l.locktype = 'advisory' AND d.datname = current_database())`).Scan(&path, &locks)
			if err != nil || strings.Contains(path, "pg_temp") || locks > 0 {
				t.Errorf("after it: search_path %s, %d locks, %v", path, locks, err)
			}
		}
	}
}

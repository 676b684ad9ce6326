package pgfence_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Who meets the fence for the first time reads which table refused, and how its driver presents a grant.
func TestAWriteWithoutAGrantIsToldHowToPresentOne(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE SCHEMA shop; CREATE TABLE shop."Line items" (id int); GRANT USAGE ON SCHEMA shop TO PUBLIC; GRANT ALL ON shop."Line items" TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('shop."Line items"', per_row => $$'lines/' || id$$)`)
	for sql, message := range map[string]string{
		`INSERT INTO work (token) VALUES (1)`:        `write to public.work without a fencing token: it needs a grant of "orders/1001"`,
		`INSERT INTO shop."Line items" VALUES (1)`:   `write to shop."Line items" without a fencing token`,
		`DELETE FROM shop."Line items" WHERE id = 7`: `write to shop."Line items" without a fencing token`,
	} {
		_, err := w.session(t).Exec(t.Context(), sql)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "ZF002" || refused.Message != message {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		if table := refused.SchemaName + "." + refused.TableName; table != "public.work" && table != "shop.Line items" {
			t.Errorf("%s: the table is %s", sql, table)
		}
		for _, word := range []string{"fence.use(resource, token)", "-c fence.resource=", "libpq", "psycopg", "JDBC", "RuntimeParams", "server_settings", "docs/frameworks.md"} {
			if !strings.Contains(refused.Hint, word) {
				t.Errorf("%s: the hint does not name %s: %s", sql, word, refused.Hint)
			}
		}
	}
}

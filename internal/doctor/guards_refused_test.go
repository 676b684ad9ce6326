//go:build unix

package doctor

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestTheTableThatRefusesMostIsNamed(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	exec(t, pg.URL,
		"CREATE TABLE other (id int)", "CREATE TABLE parted (id int) PARTITION BY LIST (id)", "CREATE TABLE a_leaf PARTITION OF parted FOR VALUES IN (1, 2)",
		"GRANT ALL ON other, parted, a_leaf TO fence_writer",
		"SELECT fence.protect('other', resource => 'other')", "SELECT fence.protect('parted', per_row => $$'rows/' || id$$)")
	want(t, examine(t, pg.GatewayURL), "postgresql.refused", OK, "no guard has refused")
	conn, err := pgx.Connect(t.Context(), pg.WriterURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, sql := range []string{"INSERT INTO other VALUES (1)", "INSERT INTO parted VALUES (1)", "INSERT INTO parted VALUES (2)"} {
		if _, err := conn.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s is not refused", sql)
		}
	}
	want(t, examine(t, pg.GatewayURL), "postgresql.refused", OK, "parted refuses most: 2 write(s)", "2 table(s)")
}

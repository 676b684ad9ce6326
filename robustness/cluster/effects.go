package cluster

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/robustness/judge"
)

// Setup creates the rows of a round's resources, with the value "".
func (c *Cluster) Setup(ctx context.Context, resources []string) error {
	return c.transact(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT set_config('judged.new', array_to_string($1::text[], ' '), true)", resources); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, newRows)
		return err
	})
}

// transact runs a transaction of the superuser on the primary.
func (c *Cluster) transact(ctx context.Context, do func(pgx.Tx) error) error {
	return c.Primary().session(ctx, func(conn *pgx.Conn) error { return pgx.BeginFunc(ctx, conn, do) })
}

// The table's triggers are ALWAYS, so a replica's role does not disable them. ALTER TABLE keeps out every other writer
// until the end of the transaction.
const newRows = `DO $$ DECLARE t name; BEGIN
  SET LOCAL lock_timeout = '20s';
  ALTER TABLE judged.registers DISABLE TRIGGER USER;
  INSERT INTO judged.registers (resource) SELECT unnest(string_to_array(current_setting('judged.new'), ' ')) ON CONFLICT DO NOTHING;
  FOR t IN SELECT tgname FROM pg_trigger WHERE tgrelid = 'judged.registers'::regclass AND NOT tgisinternal LOOP
    EXECUTE format('ALTER TABLE judged.registers ENABLE ALWAYS TRIGGER %I', t);
  END LOOP;
END $$`

// Effects reads the effects after a seq, in order, from the primary itself.
func (c *Cluster) Effects(ctx context.Context, after int64) ([]judge.Effect, error) {
	return effectsOf(ctx, c.Primary(), after)
}

const readEffects = `
SELECT seq, register, value, overwrote, resource, token, coalesce(version::text, '') AS version, lsn::text AS lsn, wall
FROM judged.effects WHERE seq > $1 ORDER BY seq`

func effectsOf(ctx context.Context, p *Postgres, after int64) (effects []judge.Effect, err error) {
	err = p.session(ctx, func(conn *pgx.Conn) error {
		rows, _ := conn.Query(ctx, readEffects, after) // CollectRows returns the error
		effects, err = pgx.CollectRows(rows, pgx.RowToStructByPos[judge.Effect])
		return err
	})
	if err != nil {
		err = fmt.Errorf("effects of %s: %w", p.Name, err)
	}
	return effects, err
}

// missing returns the effects in one list that are not in the other. A seq may be given again after a failover, but not
// at the same WAL position with the same content.
func missing(from, in []judge.Effect) []judge.Effect {
	has := make(map[judge.Effect]bool, len(in))
	for _, e := range in {
		has[e] = true
	}
	var lost []judge.Effect
	for _, e := range from {
		if !has[e] {
			lost = append(lost, e)
		}
	}
	return lost
}

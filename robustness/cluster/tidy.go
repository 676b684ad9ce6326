package cluster

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Earlier rounds' objects stop being current, as a deletion does it. Neither the fence nor the judge has a part in it.
const retireObjects = `SET LOCAL lock_timeout = '20s';
ALTER TABLE objects.pointers DISABLE TRIGGER judged;
CREATE TEMPORARY TABLE gone ON COMMIT DROP AS SELECT bucket, version FROM objects.pointers;
DELETE FROM objects.pointers;
DO $$ BEGIN PERFORM objects.retire(g.bucket, g.version) FROM gone g; END $$;
ALTER TABLE objects.pointers ENABLE ALWAYS TRIGGER judged;`

// tidyAge is how old a blob is that nobody names any more when it is swept between rounds.
const tidyAge = "1s"

// Tidy sweeps once, so that what stays of a round's blobs is what no sweep takes. Where less than two thirds of the disk
// are free, it makes room for another round: every object goes, and its bytes. Nobody writes meanwhile.
func (c *Cluster) Tidy(ctx context.Context) error {
	if err := c.CaughtUp(ctx); err != nil { // a standby that is promoted later must not name what is swept now
		return err
	}
	if err := c.sweep(ctx); err != nil {
		return err
	}
	if roomy, err := c.roomy(); roomy || err != nil {
		return err
	}
	conn, err := c.Primary().Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, retireObjects)
		return err
	})
	if err != nil {
		return err
	}
	if err := c.CaughtUp(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(2 * time.Second) // longer than the age
	defer tick.Stop()
	for range 5 { // after a failover every age begins with the first sweep
		if err := c.sweep(ctx); err != nil {
			return err
		}
		if roomy, err := c.roomy(); roomy || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (c *Cluster) sweep(ctx context.Context) error {
	_, err := c.Tool(ctx, "objects", "sweep",
		"--pending-age", tidyAge, "--superseded-age", tidyAge, "--unknown", "--unknown-age", tidyAge)
	return err
}

// roomy says that there is room for another round.
func (c *Cluster) roomy() (bool, error) {
	if c.Disk == nil {
		return true, nil
	}
	left, err := c.Disk.Left()
	return left >= c.opts.Disk*2/3, err
}

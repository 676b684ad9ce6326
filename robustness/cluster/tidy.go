package cluster

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Earlier rounds' objects stop being current, as with a deletion, except for those that are written once. Neither the
// fence nor the judge is involved.
const retireObjects = `SET LOCAL lock_timeout = '20s';
ALTER TABLE objects.pointers DISABLE TRIGGER judged;
CREATE TEMPORARY TABLE gone ON COMMIT DROP AS SELECT bucket, version FROM objects.pointers WHERE bucket = '` + Bucket + `';
DELETE FROM objects.pointers WHERE bucket = '` + Bucket + `';
DO $$ BEGIN PERFORM objects.retire(g.bucket, g.version) FROM gone g; END $$;
ALTER TABLE objects.pointers ENABLE ALWAYS TRIGGER judged;`

// tidyAge is the age at which an unreferenced blob is swept between rounds.
const tidyAge = "1s"

// Tidy sweeps once, so that only blobs that no sweep removes remain of a round. If less than two thirds of the disk are
// free, it makes room for another round: it deletes them with their bytes. Nothing is written during Tidy.
func (c *Cluster) Tidy(ctx context.Context) error {
	// A standby that is promoted later must not reference the swept blobs.
	if err := c.CaughtUp(ctx); err != nil {
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
	for range 5 { // after a failover every age restarts with the first sweep
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
		"--pending-age", tidyAge, "--superseded-age", tidyAge, "--shorten-grace", "--unknown", "--unknown-age", tidyAge)
	return err
}

// roomy reports that there is room for another round.
func (c *Cluster) roomy() (bool, error) {
	if c.Disk == nil {
		return true, nil
	}
	left, err := c.Disk.Left()
	return left >= c.opts.Disk*2/3, err
}

package pgfence

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	sqlPosition = `SELECT fence.position()::text`

	// Each query is a statement with a snapshot of its own: a snapshot that is kept can delay the replay.
	sqlReplayed = `SELECT pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END >= $1::text::pg_lsn`
)

// ErrPromoted says that the server is no longer a replica and was promoted before it had replayed the position.
var ErrPromoted = errors.New("the replica was promoted before it had replayed what was written")

// Position is a position in the primary's write-ahead log, in PostgreSQL's text form.
type Position string

// Position returns the position that a read replica must have replayed before a new holder may read there. Call it
// after [Fence.Arm] has returned: every write under an older grant has then ended, and lies before it.
//
//	position, err := f.Position(ctx)                 // the primary
//	err = pgfence.WaitReplica(ctx, conn, position)   // a connection to the replica
//	… read there …
func (f *Fence) Position(ctx context.Context) (Position, error) {
	var p Position
	if err := f.pool.QueryRow(ctx, sqlPosition).Scan(&p); err != nil {
		return "", fmt.Errorf("ask for the primary's position: %w", err)
	}
	return p, nil
}

// Replica is a connection to one read replica, outside of a transaction: a *pgx.Conn or a *pgxpool.Conn. A pool works
// only if all of its connections lead to the same server.
type Replica = Querier

// WaitReplica returns nil once the replica has replayed p. Reads that begin afterwards see every write before p. Give
// ctx a deadline: a replica whose replication has stopped never gets there. The errors: the context's, joined with
// the replica's last answer; [ErrPromoted]; or PostgreSQL's. On the primary itself it returns at once.
func WaitReplica(ctx context.Context, replica Replica, p Position) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		var standby, there bool
		err := replica.QueryRow(ctx, sqlReplayed, string(p)).Scan(&standby, &there)
		switch {
		case err != nil:
			return fmt.Errorf("wait until the replica has replayed %s: %w", p, err)
		case there:
			return nil
		case !standby:
			return fmt.Errorf("wait until the replica has replayed %s: %w", p, ErrPromoted)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("the replica has not replayed %s: %w", p, ctx.Err())
		}
	}
}

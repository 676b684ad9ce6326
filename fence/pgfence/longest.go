package pgfence

import (
	"context"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// RaiseLongest durably raises the record of the longest TTL in use to at least atLeast, for a group of lock nodes,
// and returns it. A record of another server, timeline or copy of the database is ignored, and a new one begins.
// After an error it may have been raised, which is harmless.
func (f *Fence) RaiseLongest(ctx context.Context, group string, atLeast time.Duration) (fence.LongestTTL, error) {
	var longest fence.LongestTTL
	var ms int64
	err := f.durably(ctx, core.SQLRaiseLongest, []any{group, (atLeast + time.Millisecond - 1).Milliseconds()}, &longest.Record, &ms, &longest.Kept)
	if err != nil {
		return fence.LongestTTL{}, fmt.Errorf("record that leases may last %v: %w", atLeast, err)
	}
	longest.TTL = time.Duration(ms) * time.Millisecond
	return longest, nil
}

// KeepLongest records whether all nodes of a group were admitted under a record. It changes only the current record.
func (f *Fence) KeepLongest(ctx context.Context, group string, record int64, kept bool) error {
	if err := f.durably(ctx, core.SQLKeepLongest, []any{group, record, kept}, new(string)); err != nil {
		return fmt.Errorf("record which nodes were admitted under the longest TTL: %w", err)
	}
	return nil
}

// durably runs a statement that returns one row. It fails if the commit did not reach a synchronous standby.
func (f *Fence) durably(ctx context.Context, sql string, args []any, into ...any) error {
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	warnings, err := watchCommit(ctx, conn.Conn())
	if err == nil {
		err = conn.QueryRow(ctx, sql, args...).Scan(into...)
	}
	if err == nil {
		err = warnings.orUnknown("wait for the standby")
	}
	return err
}

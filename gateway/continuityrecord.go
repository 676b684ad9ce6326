package gateway

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
)

// continuityRecord keeps what outlasts the lock's nodes. The longest TTL in use is read and raised only on a PostgreSQL that is
// the one that it was: another one may say less. An epoch that is too low is found by the nodes' own.
type continuityRecord struct {
	*pgfence.Fence

	servers *servers
}

var _ lock.LongestStore = continuityRecord{}

func (r continuityRecord) RaiseLongest(ctx context.Context, group string, atLeast time.Duration) (longest fence.LongestTTL, err error) {
	err = r.servers.unchanged(ctx, r.servers.confirm, func() error {
		longest, err = r.Fence.RaiseLongest(ctx, group, atLeast)
		return err
	})
	return longest, err
}

func (r continuityRecord) KeepLongest(ctx context.Context, group string, record int64, kept bool) error {
	return r.servers.unchanged(ctx, r.servers.confirm, func() error { return r.Fence.KeepLongest(ctx, group, record, kept) })
}

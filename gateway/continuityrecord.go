package gateway

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
)

// continuityRecord stores what outlives the lock's nodes. It reads and raises the longest TTL in use only on the
// accepted PostgreSQL: another one may record a shorter one. The nodes' own epoch reveals an epoch that is too low.
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

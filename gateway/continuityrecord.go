package gateway

import (
	"context"
	"errors"
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
	err = r.when(ctx, func() error {
		longest, err = r.Fence.RaiseLongest(ctx, group, atLeast)
		return err
	})
	return longest, err
}

func (r continuityRecord) KeepLongest(ctx context.Context, group string, record int64, kept bool) error {
	return r.when(ctx, func() error { return r.Fence.KeepLongest(ctx, group, record, kept) })
}

func (r continuityRecord) when(ctx context.Context, do func() error) error {
	before, err := r.servers.trust(ctx)
	if err != nil {
		return r.servers.untrusted(err)
	}
	if err := do(); err != nil {
		return err
	}
	if after, err := r.servers.trust(ctx); err != nil || after != before {
		return r.servers.untrusted(errors.Join(err, errChanging))
	}
	return nil
}

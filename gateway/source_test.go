//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/lock"
)

// noLeases is not a source.
func noLeases(leasing.Armer) (leasing.Source, error) { return nil, errors.New("none") }

// failingSource fails on demand.
type failingSource struct {
	leasing.Source

	away atomic.Bool
	own  atomic.Bool // arms with a seal of its own, ignoring the request's
}

// into makes it the source of a gateway, in front of the configured nodes.
func (s *failingSource) into(t *testing.T, cfg *gateway.Config) {
	t.Helper()
	nodes, prefix := cfg.RedisNodes, cfg.KeyPrefix
	cfg.RedisNodes = nil
	cfg.Leases = func(armer leasing.Armer) (leasing.Source, error) {
		l, err := lock.New(lock.Config{Nodes: nodes, KeyPrefix: prefix, Armer: armer, NodeTimeout: 10 * time.Second, MaxTTL: time.Minute})
		if err != nil {
			return nil, err
		}
		s.Source = l.Source()
		return s, initialise(t.Context(), l)
	}
}

var errNoLeader = errors.Join(leasing.ErrUnavailable, errors.New("no leader"))

func (s *failingSource) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	if s.away.Load() {
		return leasing.Lease{}, errNoLeader
	}
	return s.Source.TryAcquire(ctx, r)
}

func (s *failingSource) Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	if s.own.Load() {
		r.SealHash = nil
	}
	return s.Source.Acquire(ctx, r)
}

func (s *failingSource) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error) {
	if s.away.Load() {
		return 0, errNoLeader
	}
	return s.Source.Extend(ctx, ref, ttl)
}

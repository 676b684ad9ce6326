//go:build unix

package gateway_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/lock"
)

// noLeases is not a source.
func noLeases(leasing.Armer) (leasing.Source, error) { return nil, errors.New("none") }

// sourceOfItsOwn gives a gateway a source by Config.Leases, over the configured nodes.
func sourceOfItsOwn(t *testing.T, cfg *gateway.Config) {
	t.Helper()
	nodes, prefix := cfg.RedisNodes, cfg.KeyPrefix
	cfg.RedisNodes = nil
	cfg.Leases = func(armer leasing.Armer) (leasing.Source, error) {
		l, err := lock.New(lock.Config{Nodes: nodes, KeyPrefix: lock.Prefix(prefix), Armer: armer, NodeTimeout: 10 * time.Second, MaxTTL: time.Minute})
		if err != nil {
			return nil, err
		}
		return l.Source(), initialise(t.Context(), l)
	}
}

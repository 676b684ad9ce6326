package etcdlock_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// No token repeats or falls, and no resource has two holders, while members of three freeze for longer than an
// election, or die.
func TestTortureOfEtcd(t *testing.T) {
	t.Parallel()
	var servers []torture.Server
	for _, m := range cluster(t, 3, "").Members {
		kill := func() error { m.Kill(); return nil }
		servers = append(servers, torture.Server{Addr: m.Addr, Faults: []torture.Fault{torture.Frozen(4, m.Freeze, m.Thaw), torture.Killed(1, kill, m.Start)}})
	}
	torture.Run(t, torture.Config{Servers: servers, TTL: 1500 * time.Millisecond})
}

func tortured(_ []byte, addrs []string) (torture.Client, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	if err != nil {
		return torture.Client{}, err
	}
	s, err := etcdlock.New(etcdlock.Config{Client: client})
	return torture.Client{Source: s, After: func() { _ = client.Close() }}, err
}

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

const (
	closeTimeout = 5 * time.Second
	// nodeTimeout is long: on a busy machine a slow answer is no failure.
	nodeTimeout = 5 * time.Second
)

// shard is a database with its gateway and Redis node.
type shard struct {
	prefix  string // of its resources
	db      *database
	node    *redisserver.Server
	gateway *gateway.Gateway
	client  *client.Client
}

func startShard(ctx context.Context, prefix string, callers int) (s *shard, err error) {
	s = &shard{prefix: prefix}
	if s.node, err = redisserver.Start(ctx, redisserver.Config{}); err != nil {
		return s, err
	}
	if s.db, err = startDatabase(ctx); err != nil {
		return s, err
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	s.gateway, err = gateway.New(gateway.Config{
		PostgresURL: s.db.gateway, RedisNodes: []lock.Node{{Addr: s.node.Addr}}, InitNodes: true, NodeTimeout: nodeTimeout, MasterKey: "bench:" + hex.EncodeToString(key),
		APIListen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return s, err
	}
	if err = s.gateway.Start(ctx); err != nil {
		return s, err
	}
	s.client, err = client.New(client.Config{URL: "http://" + s.gateway.Addrs().API, HTTPClient: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: callers, DisableCompression: true,
	}}})
	if err != nil {
		return s, err
	}
	return s, s.cycle(ctx, 0) // the gateway learns its PostgreSQL from the first lease
}

func (s *shard) close() error {
	var err error
	if s.gateway != nil {
		err = s.gateway.Stop()
	}
	if s.node != nil {
		err = errors.Join(err, s.node.Close())
	}
	if s.db != nil {
		err = errors.Join(err, s.db.close())
	}
	return err
}

// cycle acquires and releases a resource of the caller.
func (s *shard) cycle(ctx context.Context, caller int) error {
	lease, err := s.client.Acquire(ctx, client.AcquireRequest{Resource: fmt.Sprintf("%s/%d", s.prefix, caller), TTL: 30 * time.Second})
	if err != nil {
		return err
	}
	return s.client.Release(ctx, lease.Handle)
}

func (p plan) databasesPart(ctx context.Context) (err error) {
	var shards []*shard
	defer func() {
		for _, s := range shards {
			err = errors.Join(err, s.close())
		}
	}()
	fmt.Printf("%-10s %10s %10s %10s %10s\n", "", "databases", "per s", "p50", "p99")
	for _, prefix := range []string{"orders", "parcels"} {
		s, err := startShard(ctx, prefix, p.at)
		shards = append(shards, s)
		if err != nil {
			return err
		}
		// Callers are spread over the shards, each of which has its own prefix.
		spread := func(ctx context.Context, caller int) error { return shards[caller%len(shards)].cycle(ctx, caller) }
		if _, err := spin(ctx, p.at, p.slice/4, spread); err != nil {
			return err
		}
		r, err := spin(ctx, p.at, p.slice, spread)
		if err != nil {
			return err
		}
		fmt.Printf("%-10s %10d %10.0f %10v %10v\n", "lease", len(shards), r.rate(), r.quantile(0.5), r.quantile(0.99))
	}
	// Arming blocks there.
	if _, err := shards[0].db.admin.Exec(ctx, `BEGIN; LOCK TABLE fence.arms IN EXCLUSIVE MODE`); err != nil {
		return err
	}
	var still atomic.Int64
	other, err := spin(ctx, p.at, p.slice, func(ctx context.Context, caller int) error {
		if caller%2 == 1 {
			return shards[1].cycle(ctx, caller)
		}
		ctx, cancel := context.WithTimeout(ctx, p.slice)
		defer cancel()
		if shards[0].cycle(ctx, caller) == nil {
			still.Add(1)
		}
		return nil
	})
	if _, thawed := shards[0].db.admin.Exec(ctx, `ROLLBACK`); err != nil || thawed != nil {
		return errors.Join(err, thawed)
	}
	fmt.Printf("%-10s %10s %10.0f %10v %10v   while the other stands still, which gave %d\n", "lease", "1 of 2", other.rate(), other.quantile(0.5), other.quantile(0.99), still.Load())
	return nil
}

package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

func TestANodeThatEvictsIsRefusedByName(t *testing.T) {
	t.Parallel()
	for policy, refused := range map[string]bool{"allkeys-lru": true, "volatile-ttl": true, "noeviction": false} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			cfg, servers := own(t, 1, redisserver.Config{Args: []string{"--maxmemory-policy", policy, "--maxmemory", "100mb"}})
			first := locker(t, cfg)
			eventually(t, time.Minute, "the node's state says so", func() bool { return errors.Is(first.Status(t.Context())[0].Err, lock.ErrEvicts) == refused })
			if err := first.Init(t.Context()); errors.Is(err, lock.ErrEvicts) != refused || refused && !strings.Contains(err.Error(), policy) {
				t.Errorf("init: %v", err)
			}
			admin := client(t, servers[0].Addr)
			must(t, admin.ConfigSet(t.Context(), "maxmemory", "0").Err()) // without a limit nothing is evicted
			release(t, acquire(t, started(t, cfg), "r"))
			must(t, admin.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
			l := locker(t, cfg)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			lease, err := l.Acquire(ctx, "r") // returns at once if refused
			if errors.Is(err, lock.ErrEvicts) != refused || refused && !strings.Contains(err.Error(), policy) || ctx.Err() != nil {
				t.Errorf("acquire: %v", err)
			}
			if _, err := l.Ready(t.Context()); errors.Is(err, lock.ErrEvicts) != refused {
				t.Errorf("ping: %v", err)
			}
			if err == nil {
				release(t, lease)
			}
		})
	}
}

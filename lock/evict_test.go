package lock_test

import (
	"errors"
	"strings"
	"testing"

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
			if err := patiently(t.Context(), func() error { return first.Init(t.Context()) }); errors.Is(err, lock.ErrEvicts) != refused || refused && !strings.Contains(err.Error(), policy) {
				t.Errorf("init: %v", err)
			}
			admin := client(t, servers[0].Addr)
			must(t, admin.ConfigSet(t.Context(), "maxmemory", "0").Err()) // without a limit nothing is evicted
			release(t, acquire(t, started(t, cfg), "r"))
			must(t, admin.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
			l := locker(t, cfg)
			if err := ping(t, l); errors.Is(err, lock.ErrEvicts) != refused {
				t.Errorf("ping: %v", err)
			}
			lease, err := l.Acquire(t.Context(), "r") // returns at once if refused
			if errors.Is(err, lock.ErrEvicts) != refused || refused && !strings.Contains(err.Error(), policy) {
				t.Errorf("acquire: %v", err)
			}
			if err == nil {
				release(t, lease)
			}
		})
	}
}

package lock_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// fences is an epoch store that also has fences, with two on a page.
type fences struct {
	epochs

	rows    []fence.Record
	granted fence.Token // of the last lease
}

func (f *fences) List(_ context.Context, _, after string, _ int) ([]fence.Record, error) {
	slices.SortFunc(f.rows, func(a, b fence.Record) int { return cmp.Compare(a.Resource, b.Resource) })
	i := slices.IndexFunc(f.rows, func(r fence.Record) bool { return r.Resource > after })
	if i < 0 {
		return nil, nil
	}
	return f.rows[i:min(i+2, len(f.rows))], nil
}

// The only node is declared durable and has durable settings: it keeps its locks across a restart and is admitted at
// once, each time.
func TestADurableNodeIsAdmittedAtOnceAfterItsRestart(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	kept := &fences{}
	cfg.Epochs, cfg.Nodes[0].Durable = kept, true
	l := started(t, cfg)
	lease := acquire(t, l, "r", lock.WithTTL(maxTTL))
	kept.rows = []fence.Record{{Resource: "r", Token: lease.Ref().Token}}
	for range 2 {
		restart(t, servers[0], nil)
		ctx, cancel := context.WithTimeout(t.Context(), maxTTL/2) // a quarantine would last twice as long
		err := admin.Of(l).Admit(ctx, "node-1")
		cancel()
		must(t, err)
		if _, err := locker(t, cfg).TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("acquire what is held: %v", err)
		}
	}
	eventually(t, 20*time.Second, "it is admitted without a warning", func() bool {
		st := status(t, l)[0]
		return st.Admitted && st.Warning == ""
	})
	before := lease.Ref().Token
	release(t, lease)
	if next := acquire(t, l, "r"); token(t, next) <= before {
		t.Errorf("token %d after %d", token(t, next), before)
	}
}

// quarantined begins to admit a node, and fails if the admission could end at once.
func quarantined(t *testing.T, l *lock.Locker) {
	t.Helper()
	begun, err := l.BeginAdmission(t.Context(), "node-1")
	must(t, err)
	if err := l.EndAdmission(t.Context(), begun); !errors.Is(err, lock.ErrQuarantined) {
		t.Errorf("admit: %v", err)
	}
}

// The declaration alone is not enough.
func TestANodeThatMayNotBeDurableIsQuarantined(t *testing.T) {
	t.Parallel()
	set := func(t *testing.T, c *redis.Client, name, value string) {
		t.Helper()
		must(t, c.ConfigSet(t.Context(), name, value).Err())
	}
	for name, one := range map[string]struct {
		before, after func(t *testing.T, c *redis.Client, kept *fences) // its admission; its restart
	}{
		"it was not when it was admitted": {
			before: func(t *testing.T, c *redis.Client, _ *fences) { set(t, c, "appendfsync", "everysec") },
		},
		"it is not any more": {
			after: func(t *testing.T, c *redis.Client, _ *fences) { set(t, c, "appendfsync", "everysec") },
		},
		"it does not sync while its file is rewritten": {
			after: func(t *testing.T, c *redis.Client, _ *fences) { set(t, c, "no-appendfsync-on-rewrite", "yes") },
		},
		"a fence stands above its counter": {
			after: func(_ *testing.T, _ *redis.Client, kept *fences) {
				kept.rows = []fence.Record{{Resource: "a", Token: 1<<32 + 1}, {Resource: "b", Token: 1<<32 + 1}, {Resource: "r", Token: kept.granted + 1}}
			},
		},
		"the epoch was raised": {
			after: func(_ *testing.T, _ *redis.Client, kept *fences) { kept.last.Add(1) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
			kept := &fences{}
			cfg.Epochs, cfg.Nodes[0].Durable = kept, true
			if one.before != nil {
				one.before(t, client(t, servers[0].Addr), kept)
			}
			l := started(t, cfg)
			for _, resource := range []string{"a", "b", "r", "r"} {
				lease := acquire(t, l, resource)
				kept.granted = lease.Ref().Token
				release(t, lease)
			}
			restart(t, servers[0], nil)
			if one.after != nil {
				one.after(t, client(t, servers[0].Addr), kept)
			}
			quarantined(t, l)
		})
	}
}

func TestANodeThatIsDeclaredDurableAndIsNotIsWarnedOf(t *testing.T) {
	t.Parallel()
	cfg, _ := own(t, 1, redisserver.Config{AppendOnly: redisserver.EverySec})
	cfg.Nodes[0].Durable = true
	l := started(t, cfg)
	eventually(t, 20*time.Second, "it is warned of", func() bool { // once its settings are read in time
		return strings.Contains(status(t, l)[0].Warning, `appendfsync is "everysec"`)
	})
	cfg.Nodes = nodesAt("a:1", "b:1", "c:1")
	cfg.Nodes[2].Durable = true
	if err := cfg.Validate(); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("one of three nodes: %v", err)
	}
}

// What a node's settings are later does not matter.
func TestANodeThatIsAdmittedWithOtherSettingsIsNotDurable(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs, cfg.Nodes[0].Durable = &fences{}, true
	l, admin := started(t, cfg), client(t, servers[0].Addr)
	must(t, admin.ScriptFlush(t.Context()).Err())
	must(t, admin.ConfigSet(t.Context(), "appendfsync", "everysec").Err())
	admit(t, l, "node-1")
	must(t, admin.ConfigSet(t.Context(), "appendfsync", "always").Err())
	restart(t, servers[0], nil)
	quarantined(t, l)
}

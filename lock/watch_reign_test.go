package lock_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

func TestANodeThatEvictsIsRefusedByName(t *testing.T) {
	t.Parallel()
	for policy, refused := range map[string]bool{"allkeys-lru": true, "volatile-ttl": true, "noeviction": false} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			cfg, servers := own(t, 1, redisserver.Config{Args: []string{"--maxmemory-policy", policy, "--maxmemory", "100mb"}})
			first := locker(t, cfg)
			eventually(t, time.Minute, "the node's state says so", func() bool { return errors.Is(admin.Of(first).Status(t.Context())[0].Err, lock.ErrEvicts) == refused })
			if err := admin.Of(first).Init(t.Context()); errors.Is(err, lock.ErrEvicts) != refused || refused && !strings.Contains(err.Error(), policy) {
				t.Errorf("init: %v", err)
			}
			operator := client(t, servers[0].Addr)
			must(t, operator.ConfigSet(t.Context(), "maxmemory", "0").Err()) // without a limit nothing is evicted
			release(t, acquire(t, started(t, cfg), "r"))
			must(t, operator.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
			l := locker(t, cfg)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			lease, err := l.Acquire(ctx, "r") // returns at once if refused
			if errors.Is(err, lock.ErrEvicts) != refused || refused && !strings.Contains(err.Error(), policy) || ctx.Err() != nil {
				t.Errorf("acquire: %v", err)
			}
			if _, err := l.Ready(t.Context()); errors.Is(err, lock.ErrEvicts) != refused {
				t.Errorf("ready: %v", err)
			}
			if err == nil {
				release(t, lease)
			}
		})
	}
}

// checked is how long each Locker has checked an idle node at the latest.
const checked = 2 * time.Second

func TestANodeGrantsOnlyWhatItsAccountOfItselfAllows(t *testing.T) {
	t.Parallel()
	first, other := strings.Repeat("b", 40), strings.Repeat("c", 40)
	for name, c := range map[string]struct {
		change func(a *memredis.Account)
		want   error // at its next check
		fresh  error // of a process that starts then
		back   error // once it says what it said before
	}{
		"it may evict keys":                                  {func(a *memredis.Account) { a.Limit, a.Policy = "1000", "volatile-lru" }, lock.ErrEvicts, lock.ErrEvicts, nil},
		"a policy without a limit":                           {change: func(a *memredis.Account) { a.Policy = "volatile-lru" }},
		"it has evicted a key, and its statistics are reset": {func(a *memredis.Account) { a.Evicted = 1 }, lock.ErrQuarantined, lock.ErrQuarantined, lock.ErrQuarantined},
		"it is a replica":                                    {func(a *memredis.Account) { a.Role = "slave" }, lock.ErrQuarantined, lock.ErrQuarantined, nil},
		"it was promoted":                                    {func(a *memredis.Account) { a.ReplID, a.OtherReplID = first, other }, lock.ErrQuarantined, lock.ErrQuarantined, lock.ErrQuarantined},
		"its first replica came, or a backup":                {change: func(a *memredis.Account) { a.ReplID = first }, fresh: lock.ErrQuarantined},
		"a backup came, and it has evicted a key":            {func(a *memredis.Account) { a.ReplID, a.Evicted = first, 1 }, lock.ErrQuarantined, lock.ErrQuarantined, lock.ErrQuarantined},
		"it refuses INFO":                                    {change: func(a *memredis.Account) { a.Refused = true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 1)
				l := started(t, cfg)
				tried := func(l *lock.Locker, want error, when string) {
					t.Helper()
					lease, err := l.TryAcquire(t.Context(), "r")
					if !errors.Is(err, want) || (err == nil) != (want == nil) {
						t.Errorf("%s: %v; want %v", when, err, want)
					}
					if err == nil {
						release(t, lease)
					}
				}
				time.Sleep(checked)
				tried(l, nil, "at first")
				var was memredis.Account
				nodes[0].Says(func(a *memredis.Account) { was = *a; c.change(a) })
				fresh := locker(t, cfg)
				tried(fresh, c.fresh, "a new process")
				must(t, fresh.Close())
				time.Sleep(checked)
				synctest.Wait()
				tried(l, c.want, "after a check")
				st := admin.Of(l).Status(t.Context())[0]
				if st.Admitted != (c.want == nil) || errors.Is(c.want, lock.ErrEvicts) && !errors.Is(st.Err, lock.ErrEvicts) {
					t.Errorf("status %+v", st)
				}
				nodes[0].Says(func(a *memredis.Account) { *a = was })
				time.Sleep(checked)
				synctest.Wait()
				if name == "its first replica came, or a backup" {
					return // no server takes an old ID again
				}
				tried(l, c.back, "as before")
			})
		})
	}
}

func TestANodeThatRefusesINFOIsNotWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		nodes[0].Says(func(a *memredis.Account) { a.Refused = true }) // to the admission
		l := started(t, cfg)
		nodes[0].Says(func(a *memredis.Account) { a.Refused = false })
		nodes[1].Says(func(a *memredis.Account) { a.Refused = true }) // to this process
		for i, st := range admin.Of(l).Status(t.Context()) {
			if watched := i == 2; !st.Admitted || st.Watched != watched || strings.Contains(st.Warning, "not watched") == watched {
				t.Errorf("status %+v", st)
			}
		}
	})
}

// Others that don't see it would grant leases of which the quarantine knows nothing.
func TestAReignEndsForAllBeforeTheQuarantine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		cfg.Epochs = &epochs{}
		cfg.Unwatched()
		l, blind := started(t, cfg), locker(t, cfg)
		release(t, acquire(t, blind, "r"))
		nodes[0].Says(func(a *memredis.Account) { a.Evicted = 1 })
		if _, err := l.BeginAdmission(t.Context(), "node-1"); err != nil {
			t.Fatal(err)
		}
		if _, err := blind.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrQuarantined) {
			t.Errorf("over an open connection: %v", err)
		}
	})
}

// Redis evicts only for real. The lease's lock goes, and its holder knows nothing of that.
func TestANodeThatBeginsToEvictGrantsNoLeaseTwice(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{Args: []string{"--maxmemory", "100mb"}})
	cfg.Epochs = &epochs{}
	holder, l := started(t, cfg), locker(t, cfg)
	held := acquire(t, holder, "r", lock.WithTTL(maxTTL))
	release(t, acquire(t, l, "other")) // its link is open
	operator := client(t, servers[0].Addr)
	must(t, operator.ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru").Err())
	begun := time.Now()
	eventually(t, time.Minute, "the node takes no part", func() bool {
		_, err := l.TryAcquire(t.Context(), "another")
		return errors.Is(err, lock.ErrEvicts)
	})
	t.Logf("noticed after %v", time.Since(begun))
	if st := admin.Of(l).Status(t.Context())[0]; st.Admitted || !errors.Is(st.Err, lock.ErrEvicts) {
		t.Errorf("status %+v", st)
	}
	h := prefixOf(cfg) + ":h"
	incarnation := operator.HGet(t.Context(), h, "@incarnation").Val()
	must(t, operator.ConfigSet(t.Context(), "maxmemory", "1kb").Err())
	eventually(t, time.Minute, "the lock is evicted", func() bool {
		return operator.Exists(t.Context(), prefixOf(cfg)+":lock:r").Val() == 0
	})
	eventually(t, time.Minute, "the node is lost", func() bool {
		return operator.HGet(t.Context(), h, "@incarnation").Val() != incarnation
	})
	must(t, operator.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
	must(t, operator.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	must(t, operator.ConfigResetStat(t.Context()).Err())
	for _, one := range []*lock.Locker{l, locker(t, cfg)} {
		if _, err := one.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrQuarantined) {
			t.Errorf("while %v is held: %v", held.Ref(), err)
		}
	}
}

// address leads to one server after another, as a name or a balancer does.
type address struct {
	mu    sync.Mutex
	to    string
	conns []net.Conn
}

func (a *address) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.to)
	if err == nil {
		a.conns = append(a.conns, conn)
	}
	return conn, err
}

// move has the address lead to another server, and cuts the connections.
func (a *address) move(to string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.to = to
	for _, conn := range a.conns {
		_ = conn.Close()
	}
	a.conns = nil
}

// follow makes a server another's replica and waits until it has its data.
func follow(t *testing.T, replica, primary *redis.Client) {
	t.Helper()
	host, port, err := net.SplitHostPort(primary.Options().Addr)
	must(t, err)
	must(t, replica.Do(t.Context(), "REPLICAOF", host, port).Err())
	eventually(t, time.Minute, "the replica has caught up", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
}

func promote(t *testing.T, replica *redis.Client) {
	t.Helper()
	must(t, replica.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
}

func TestANodeThatFailsOverAndBackGivesNoTokenTwice(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{true, false} {
		name := "its connections stay"
		if cut {
			name = "its connections are cut"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--repl-diskless-sync-delay", "0"}
			a, b := startBare(t, args...), startBare(t, args...)
			first, second := client(t, a.Addr), client(t, b.Addr)
			follow(t, second, first)
			at := &address{to: a.Addr}
			cfg := lock.Config{
				Nodes: []lock.Node{{Name: "node", Addr: "node", Dialer: at.dial}}, NodeTimeout: patient, MaxTTL: watchedTTL, Epochs: &epochs{},
			}
			l := started(t, cfg)
			must(t, first.Wait(t.Context(), 1, time.Minute).Err())
			promote(t, second) // what the first one does from here on is lost
			last := counted(t, l)
			if cut {
				at.move(b.Addr)
				if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrQuarantined) {
					t.Errorf("behind the failover: %v", err)
				}
			}
			follow(t, first, second)
			promote(t, first)
			if cut {
				at.move(a.Addr)
			} else {
				eventually(t, time.Minute, "the node is lost", func() bool {
					st := admin.Of(l).Status(t.Context())[0]
					return !st.Admitted && st.Warning == "" // no longer as it says: see depose
				})
			}
			if lease, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrQuarantined) {
				t.Fatalf("after the failover back: %+v, %v; the last token is %d", lease, err, last)
			}
			must(t, admin.Of(l).Admit(t.Context(), "node"))
			if got := token(t, acquire(t, l, "r")); got <= last {
				t.Errorf("token %d after %d", got, last)
			}
		})
	}
}

// A replica has durable settings, too, and the mark of a durable node. It may lack extensions, which raise no counter.
func TestADurableNodeThatWasPromotedIsQuarantined(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{false, true} {
		name := "a replica"
		if back {
			name = "the former primary, which still has the scripts"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--repl-diskless-sync-delay", "0", "--appendonly", "yes", "--appendfsync", "always"}
			a, b := startBare(t, args...), startBare(t, args...)
			first, second := client(t, a.Addr), client(t, b.Addr)
			follow(t, second, first)
			at := &address{to: a.Addr}
			l := started(t, lock.Config{
				Nodes:       []lock.Node{{Name: "node-1", Addr: "node", Dialer: at.dial, Durable: true}},
				NodeTimeout: patient, MaxTTL: watchedTTL, Epochs: &fences{},
			})
			must(t, first.Wait(t.Context(), 1, time.Minute).Err())
			promote(t, second)
			if back {
				follow(t, first, second)
				promote(t, first)
				at.move(a.Addr)
			} else {
				at.move(b.Addr)
			}
			quarantined(t, l)
		})
	}
}

// A process that knows nothing of the node's past leaves it to one that does.
func TestANodeIsLeftToTheProcessesThatSawItBefore(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"one renews the reign": true, "there is none": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 1)
				cfg.Armer = &register{}
				l := started(t, cfg)
				held := acquire(t, l, "r", lock.WithTTL(time.Minute))
				time.Sleep(checked)
				if !known {
					must(t, l.Close())
				}
				nodes[0].Says(func(a *memredis.Account) { a.ReplID = strings.Repeat("b", 40) })
				fresh := locker(t, cfg)
				if _, err := fresh.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrQuarantined) {
					t.Errorf("at once: %v", err)
				}
				time.Sleep(4 * checked)
				synctest.Wait()
				switch _, err := fresh.TryAcquire(t.Context(), "r"); {
				case known && !errors.Is(err, lock.ErrHeld):
					t.Errorf("later, while %v is held: %v", held.Ref(), err)
				case !known && !errors.Is(err, lock.ErrQuarantined):
					t.Errorf("later, by nobody's word: %v", err)
				}
			})
		})
	}
}

// A backup by redis-cli --rdb is a replica.
func TestAReplicaThatComesCostsNoNode(t *testing.T) {
	t.Parallel()
	server, replica := startBare(t, "--repl-diskless-sync-delay", "0"), startBare(t)
	l := started(t, lock.Config{Nodes: nodesAt(server.Addr), NodeTimeout: patient, MaxTTL: watchedTTL})
	operator := client(t, server.Addr)
	noted := func() string { return operator.HGet(t.Context(), lock.DefaultKeyPrefix+":h", "@reign").Val() }
	before := noted()
	eventually(t, time.Minute, "the node was checked", func() bool { return lock.Saw(l) })
	follow(t, client(t, replica.Addr), operator)
	eventually(t, time.Minute, "the new ID is noted", func() bool { return noted() != before })
	if _, err := l.TryAcquire(t.Context(), "r"); err != nil || !admin.Of(l).Status(t.Context())[0].Admitted {
		t.Error(err)
	}
}

package lock_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// stranger is a Locker that admits nothing, like `fencegate nodes status`.
func stranger(t *testing.T, cfg lock.Config) *lock.Locker {
	t.Helper()
	cfg.Armer, cfg.Epochs = nil, nil
	return locker(t, cfg)
}

func TestALostNodeIsAdmittedThoughNobodyAsksForLeases(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		for name, loss := range losses {
			t.Run(fmt.Sprintf("%d, %s", nodes, name), func(t *testing.T) {
				t.Parallel()
				cfg, servers := own(t, nodes, loss.server)
				cfg.MaxTTL, cfg.Armer, cfg.Epochs = 300*time.Millisecond, &register{}, &epochs{}
				watchers := []*lock.Locker{started(t, cfg), locker(t, cfg), locker(t, cfg)}
				before := acquire(t, watchers[0], "r")
				release(t, before)
				<-time.After(4 * time.Second) // each has checked the nodes
				c := client(t, servers[0].Addr)
				incarnation := func() string { return c.HGet(t.Context(), cfg.KeyPrefix+":h", "@incarnation").Val() }
				old, lost := incarnation(), time.Now()
				loss.lose(t, servers[0], c)
				sight := stranger(t, cfg)
				eventually(t, 30*time.Second, "the node is admitted anew", func() bool {
					return status(t, sight)[0].Admitted && incarnation() != old
				})
				if took := time.Since(lost); took < cfg.MaxTTL {
					t.Errorf("admitted after %v; the quarantine is %v", took, cfg.MaxTTL)
				} else {
					t.Logf("admitted after %v", took)
				}
				for _, l := range watchers {
					after := acquire(t, l, "r")
					if token(t, after) <= before.Ref().Token {
						t.Error("token fell")
					}
					release(t, after)
				}
			})
		}
	}
}

// A quarantine would keep a new group from granting leases for minutes.
func TestAGroupThatWasNeverStartedIsLeftToInit(t *testing.T) {
	t.Parallel()
	cfg, _ := own(t, 3, redisserver.Config{})
	cfg.Armer, cfg.Epochs = &register{}, &epochs{}
	l := locker(t, cfg)
	<-time.After(5 * time.Second) // at least two checks
	initialise(t, l)
	release(t, acquire(t, l, "r"))
}

func TestAnIdleLockerAsksANodeOnceASecondAtTheMost(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	cfg.Armer, cfg.Epochs = &register{}, &epochs{}
	l := started(t, cfg)
	asked := client(t, servers[0].Addr)
	<-time.After(3 * time.Second) // the first check uses more commands
	const quiet = 6
	const each = 2              // in one message
	for tries := 0; ; tries++ { // on a busy machine the first check, or one of these, is late
		before := commands(t, asked)
		<-time.After(quiet * time.Second)
		n := commands(t, asked) - before - 1
		if n >= each*quiet/3 && n <= each*(quiet+2) {
			break
		}
		if tries == 4 {
			t.Fatalf("%d commands in %d s", n, quiet)
		}
		t.Logf("%d commands in %d s", n, quiet)
	}
	must(t, l.Close())
	before := commands(t, asked)
	<-time.After(3 * time.Second)
	if n := commands(t, asked) - before - 1; n != 0 {
		t.Errorf("%d commands after Close", n)
	}
}

// commands is the number of commands that a server has executed.
func commands(t *testing.T, c *redis.Client) int {
	t.Helper()
	info, err := c.Info(t.Context(), "stats").Result()
	must(t, err)
	_, rest, _ := strings.Cut(info, "total_commands_processed:")
	digits, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.Atoi(digits)
	must(t, err)
	return n
}

package memredis_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/internal/memredis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// through is a client whose connections the test's delays, holds and losses concern.
func through(t *testing.T, n *memredis.Node) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: "memory", Dialer: n.Dial, Protocol: 2, MaxRetries: -1, ReadTimeout: time.Second, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestKeysExpireByTheBubblesClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memredis.Start(t)
		c := through(t, n)
		if err := c.Set(t.Context(), "k", "v", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		n.Restart(t)
		if got := c.Get(t.Context(), "k").Val(); got != "v" {
			t.Errorf("after 59 min: %q", got)
		}
		n.Stop()
		if err := through(t, n).Get(t.Context(), "k").Err(); !errors.Is(err, memredis.ErrDown) {
			t.Errorf("stopped: %v", err)
		}
	})
}

func TestAStoppedNodesKeysExpireMeanwhileAndALostNodeHasNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memredis.Start(t)
		c := through(t, n)
		sha := c.ScriptLoad(t.Context(), "return 1").Val()
		c.Set(t.Context(), "short", "v", time.Minute)
		c.Set(t.Context(), "long", "v", time.Hour)
		n.Freeze()
		time.Sleep(2 * time.Minute)
		n.Thaw()
		n.Restart(t)
		c = through(t, n)
		if exists := c.Exists(t.Context(), "short", "long").Val(); exists != 1 {
			t.Errorf("%d of the keys exist", exists)
		}
		if known := c.ScriptExists(t.Context(), sha).Val(); len(known) != 1 || known[0] {
			t.Errorf("scripts after a restart: %v", known)
		}
		n.Lose(t)
		if exists, err := through(t, n).Exists(t.Context(), "long").Result(); exists != 0 || err != nil {
			t.Errorf("a lost node has %d keys; %v", exists, err)
		}
	})
}

func TestMessagesAreHeldDelayedAndLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memredis.Start(t)
		c, direct := through(t, n), n.Client(t)
		took := func(f func() error) time.Duration {
			begun := time.Now()
			_ = f()
			return time.Since(begun)
		}
		incr := func() error { return c.Incr(t.Context(), "k").Err() }
		must := func(want string) {
			t.Helper()
			if got := direct.Get(t.Context(), "k").Val(); got != want {
				t.Errorf("counted %s, want %s", got, want)
			}
		}
		_ = incr()
		n.Replies.Delay(func() time.Duration { return 300 * time.Millisecond })
		if d := took(incr); d != 300*time.Millisecond {
			t.Errorf("a delayed reply took %v", d)
		}
		n.Replies.Delay(nil)
		n.Requests.Close()
		if d := took(incr); d != time.Second || n.Requests.HeldCount() == 0 {
			t.Errorf("a held request took %v", d)
		}
		must("2")
		n.Requests.Open()
		synctest.Wait()
		must("3") // though its sender has gone
		_ = incr()
		n.Replies.Lose(1)
		if err := incr(); err == nil {
			t.Error("an answer that was lost came")
		}
		must("5")
		n.Requests.Lose(1)
		if err := incr(); err == nil || n.Requests.Lost() != 1 {
			t.Errorf("a request that was lost was answered: %v", err)
		}
		must("5")
	})
}

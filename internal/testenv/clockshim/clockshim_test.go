//go:build linux

package clockshim_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
)

func setup(t *testing.T) (*clockshim.Clock, *redis.Client) {
	t.Helper()
	clock := clockshim.New(t)
	srv, err := redisserver.Start(t.Context(), redisserver.Config{Env: clock.Env()})
	if err != nil {
		t.Fatal(err)
	}
	cl := redis.NewClient(&redis.Options{Addr: srv.Addr})
	t.Cleanup(func() {
		if err := errors.Join(cl.Close(), srv.Close()); err != nil {
			t.Error(err)
		}
	})
	return clock, cl
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A precision of a minute suits any machine.
const about = time.Minute

func TestTheServersTimeFollowsTheClock(t *testing.T) {
	t.Parallel()
	clock, cl := setup(t)
	for _, offset := range []time.Duration{0, 3 * time.Hour, -5 * time.Hour, 0} {
		must(t, clock.Set(offset))
		now, err := cl.Time(t.Context()).Result()
		must(t, err)
		if off := time.Until(now) - offset; off.Abs() > about {
			t.Errorf("shifted by %v the server is %v off", offset, off)
		}
	}
}

func TestAJumpForwardExpiresKeysEarlyAndOneBackKeepsThemLonger(t *testing.T) {
	t.Parallel()
	clock, cl := setup(t)
	must(t, cl.Set(t.Context(), "k", "v", time.Hour).Err())
	must(t, clock.Set(59*time.Minute))
	if left := cl.PTTL(t.Context(), "k").Val(); left <= 0 || left > about {
		t.Errorf("59 minutes later it has %v left", left)
	}
	must(t, clock.Set(61*time.Minute))
	if err := cl.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("after the jump: %v", err)
	}
	must(t, cl.Set(t.Context(), "k", "v", time.Millisecond).Err())
	must(t, clock.Set(0))
	if left := cl.PTTL(t.Context(), "k").Val(); left < time.Hour-about {
		t.Errorf("an hour before it has %v left", left)
	}
}

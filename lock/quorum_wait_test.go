package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// Nodes that are frozen for a while, as in a short partition, delay an acquisition but do not fail it.
func TestAcquireWaitsForAQuorum(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	started(t, cfg)
	cfg.NodeTimeout = silence
	l := locker(t, cfg)
	freeze(t, servers[0])
	freeze(t, servers[1])
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := make(chan error, 1)
	go func() {
		lease, err := l.Acquire(ctx, "r", lock.WithTTL(time.Minute))
		if err == nil {
			err = lease.Release(ctx)
		}
		got <- err
	}()
	eventually(t, 20*time.Second, "it has tried twice", func() bool { return l.Attempts() >= 3 })
	must(t, servers[0].Thaw())
	if err := <-got; err != nil && !errors.Is(err, lock.ErrLost) { // the machine was too busy for the release
		t.Fatal(err)
	}
}

func TestTheEndOfAWaitForAQuorumSaysWhyItWaited(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	started(t, cfg)
	cfg.NodeTimeout = silence
	l := locker(t, cfg)
	must(t, servers[0].Kill())
	must(t, servers[1].Kill())
	testenv.Paced(t, 2*time.Second, func(patience time.Duration) error {
		before := l.Attempts()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := l.Acquire(ctx, "r")
		var missing *lock.QuorumError
		if !errors.As(err, &missing) || len(missing.Causes) != 2 || !errors.Is(err, context.DeadlineExceeded) || !lock.Retryable(err) {
			return fmt.Errorf("the error: %w", err)
		}
		if n := l.Attempts() - before; n < 3 {
			return fmt.Errorf("%d attempts", n)
		}
		return nil
	})
}

// An error that only an operator can repair is returned at once, whatever time is left.
func TestAcquireDoesNotWaitForAPerson(t *testing.T) {
	t.Parallel()
	password := func(t *testing.T) lock.Config {
		node := miniredis.RunT(t)
		node.RequireAuth("secret")
		return lock.Config{Nodes: []lock.Node{{Addr: node.Addr(), Password: "another"}}, KeyPrefix: "p", NodeTimeout: patient}
	}
	login := func(t *testing.T) lock.Config {
		cfg := password(t)
		cfg.Nodes[0].Password = ""
		return cfg
	}
	protected := func(t *testing.T) lock.Config {
		cfg, servers := own(t, 1, redisserver.Config{})
		admin := client(t, servers[0].Addr)
		must(t, admin.ACLSetUser(t.Context(), "lockers", "on", ">secret", "~*", "&*", "+hello", "+select", "+ping").Err())
		cfg.Nodes[0].Username, cfg.Nodes[0].Password = "lockers", "secret"
		return cfg
	}
	for name, config := range map[string]func(*testing.T) lock.Config{
		"a wrong password": password, "no password": login, "a user who may not": protected,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := locker(t, config(t))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := l.Acquire(ctx, "r")
			if !errors.Is(err, lock.ErrNoQuorum) || ctx.Err() != nil {
				t.Errorf("%v (context: %v)", err, ctx.Err())
			}
		})
	}
}

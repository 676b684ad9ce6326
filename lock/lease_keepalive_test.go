package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

func TestKeepAliveRenewsUntilItsCap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		var ended error
		lease := leased(t, l, "r", lock.WithKeepAlive(lock.KeepAlive{
			Renewals: 4, Ended: func(err error) { ended = err },
		}))
		begun := time.Now()
		<-lease.Done()
		synctest.Wait()
		// Each renewal comes a quarter to a third of the TTL after the one before; the last one's TTL runs out.
		if lived, ttl := time.Since(begun), lock.DefaultTTL; lived < 2*ttl-ttl/50 || lived > ttl*7/3 {
			t.Errorf("the lease lived for %v", lived)
		}
		if !errors.Is(ended, lock.ErrCapped) {
			t.Errorf("ended: %v", ended)
		}
	})
}

func TestAStuckWorkerIsNotRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		stuck := errors.New("no item done since the last renewal")
		var ended error
		asked := 0
		lease := leased(t, l, "r", lock.WithKeepAlive(lock.KeepAlive{
			For: time.Hour, Ended: func(err error) { ended = err },
			Progress: func(context.Context) error {
				if asked++; asked > 2 {
					return stuck
				}
				return nil
			},
		}))
		begun := time.Now()
		<-lease.Done()
		synctest.Wait()
		if lived, ttl := time.Since(begun), lock.DefaultTTL; lived < ttl*3/2-ttl/50 || lived > ttl*5/3 {
			t.Errorf("renewed twice, the lease lived for %v", lived)
		}
		if !errors.Is(ended, stuck) {
			t.Errorf("ended: %v", ended)
		}
	})
}

func TestReleaseEndsRenewalsQuietly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		var ended error
		lease := leased(t, l, "r", lock.WithKeepAlive(lock.KeepAlive{
			For: time.Hour, Ended: func(err error) { ended = err },
		}))
		first := lease.Deadline()
		time.Sleep(2 * time.Minute)
		if !lease.Deadline().After(first) {
			t.Error("not renewed")
		}
		must(t, lease.Release(t.Context()))
		must(t, l.Close()) // waits for the goroutine
		if ended != nil {
			t.Errorf("ended: %v", ended)
		}
	})
}

// An acquisition takes two rounds, and each takes nearly the node timeout.
func TestTheShortestTTLIsKeptOnNodesAsSlowAsTheNodeTimeout(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, n)
				l := started(t, cfg)
				for _, n := range nodes {
					n.Requests.Delay(func() time.Duration { return lock.DefaultNodeTimeout - time.Millisecond })
				}
				const renewals = 100
				lease := acquire(t, l, "r", lock.WithTTL(leasing.MinTTL), lock.WithKeepAlive(lock.KeepAlive{Renewals: renewals}))
				time.Sleep(renewals * leasing.MinTTL / 4)
				if err := context.Cause(lease.Context()); err != nil {
					t.Errorf("the lease has ended: %v", err)
				}
			})
		})
	}
}

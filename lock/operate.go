package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Leak is a lock that never expires. This package leaves none, but a PERSIST, a restore or a foreign script can.
type Leak struct {
	Node     string
	Resource string
	Holder   string
}

// Leaks scans all nodes for locks without a TTL. It makes one pass over each node's keys, in pages, and changes
// nothing. The error joins a [*NodeError] for each node that could not be scanned; the other nodes' leaks are
// returned anyway.
func (l *Locker) Leaks(ctx context.Context) ([]Leak, error) {
	if err := l.keyed(ctx); err != nil {
		return nil, err
	}
	found := make([][]Leak, len(l.nodes))
	errs := make([]error, len(l.nodes))
	var scans sync.WaitGroup
	for i, n := range l.nodes {
		scans.Go(func() {
			var err error
			if found[i], err = n.leaks(ctx); err != nil {
				errs[i] = &NodeError{Node: n.name, Err: err}
			}
		})
	}
	scans.Wait()
	var all []Leak
	for _, leaks := range found {
		all = append(all, leaks...)
	}
	return all, errors.Join(errs...)
}

func (n *node) leaks(ctx context.Context) ([]Leak, error) {
	var leaks []Leak
	for cursor := uint64(0); ; {
		page, next, err := n.client.Scan(ctx, cursor, globQuote(n.keys.lockPrefix)+"*", 1000).Result()
		if err != nil {
			return leaks, serverError(err)
		}
		values := make([]*redis.StringCmd, len(page))
		ttls := make([]*redis.DurationCmd, len(page))
		if len(page) > 0 {
			_, err = n.client.Pipelined(ctx, func(p redis.Pipeliner) error {
				for i, key := range page {
					values[i], ttls[i] = p.Get(ctx, key), p.PTTL(ctx, key)
				}
				return nil
			})
			if err != nil && !errors.Is(err, redis.Nil) {
				return leaks, serverError(err)
			}
		}
		for i, key := range page {
			if value := values[i].Val(); ttls[i].Val() == -1 && value != "" {
				leaks = append(leaks, Leak{
					Node:     n.name,
					Resource: strings.TrimPrefix(key, n.keys.lockPrefix),
					Holder:   value[min(ownerLength, len(value)):],
				})
			}
		}
		if cursor = next; cursor == 0 {
			return leaks, nil
		}
	}
}

// ForceRelease takes a resource from its holder. It is for operators. With an Armer it then acquires the resource
// once, which raises the fence past the holder, so the holder's writes are refused, and returns that token. Without
// one nothing stops a holder that still runs, and the token is 0.
//
// The errors are those of [Locker.Inspect], [Locker.Release] and [Locker.TryAcquire]. With [ErrHeld] another has
// acquired the resource in between, which fences the old holder off as well.
func (l *Locker) ForceRelease(ctx context.Context, resource string) (fence.Token, error) {
	_, locks, err := l.inspect(ctx, resource)
	if err != nil {
		return 0, err
	}
	owners := make(map[string]bool)
	for _, nl := range locks[0] {
		if nl.Locked {
			owners[nl.owner] = true
		}
	}
	for owner := range owners {
		err := l.Release(ctx, leasing.Ref{Resource: resource, Owner: owner})
		if err != nil && !errors.Is(err, ErrLost) { // it may be on a minority, or have ended meanwhile
			return 0, err
		}
	}
	l.lines.Free(resource)
	if l.cfg.Armer == nil {
		return 0, nil
	}
	lease, err := l.TryAcquire(ctx, resource, WithHolder("forced release"))
	if err != nil {
		return 0, fmt.Errorf("the lock of %q was freed, but the fence was not raised: its holder may still write: %w", resource, err)
	}
	lease.ReleaseAsync()
	return lease.Ref().Token, nil
}

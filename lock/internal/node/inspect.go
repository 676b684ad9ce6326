package node

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Lock is one node's view of a resource. A TTL of -1 is a leak: the lock never expires. Waiters are the Lockers
// in the queue on this node: the resource's home keeps it, or the next node while that is down.
type Lock struct {
	leasing.Member

	Owner string
}

// Inspect is one node's view of each resource, at one moment.
func (n *Node) Inspect(ctx context.Context, resources []string) []Lock {
	ctx, cancel := context.WithTimeout(ctx, StallTimeout)
	defer cancel()
	found := make([]Lock, len(resources))
	values, ttls := make([]*redis.StringCmd, len(resources)), make([]*redis.DurationCmd, len(resources))
	waiters := make([]*redis.IntCmd, len(resources))
	fields := make([]string, len(resources))
	var counters *redis.SliceCmd
	_, err := n.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for i, resource := range resources {
			values[i] = p.Get(ctx, n.keys.Lock(resource))
			ttls[i] = p.PTTL(ctx, n.keys.Lock(resource))
			waiters[i] = p.ZCard(ctx, n.keys.waitPrefix+resource)
			fields[i] = counterField(resource)
		}
		if len(fields) > 0 {
			counters = p.HMGet(ctx, n.keys.H, fields...)
		}
		return nil
	})
	for i := range found {
		nl := Lock{Member: leasing.Member{Name: n.Name}}
		// The pipeline returns the first error: a lock that is free hides what follows.
		failed := cmp.Or(failure(err), failure(values[i].Err()), ttls[i].Err(), waiters[i].Err(), counters.Err())
		switch {
		case failed == nil && len(counters.Val()) != len(fields):
			nl.Err = ServerError(errMalformed)
		case failed != nil:
			nl.Err = ServerError(failed)
		case ttls[i].Val() == -2*time.Nanosecond: // go-redis' value for a missing key
		default:
			nl.read(values[i].Val(), ttls[i].Val())
		}
		if nl.Err == nil {
			nl.Waiters = int(waiters[i].Val())
			if text, ok := counters.Val()[i].(string); ok {
				nl.Token = fence.Token(number(text))
			}
		}
		found[i] = nl
	}
	return found
}

// failure is err, unless it says that a key does not exist.
func failure(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// read parses the value and the TTL of a lock's key.
func (nl *Lock) read(value string, ttl time.Duration) {
	if len(value) >= OwnerLength {
		nl.Locked = true
		nl.Owner, nl.Holder = value[:OwnerLength], value[OwnerLength:]
		nl.TTL = ttl
	}
}

// Leak is a lock that never expires. This package leaves none, but a PERSIST, a restore or a foreign script can.
type Leak struct {
	Node     string
	Resource string
	Holder   string
}

func (n *Node) Leaks(ctx context.Context) ([]Leak, error) {
	var leaks []Leak
	for cursor := uint64(0); ; {
		page, next, err := n.client.Scan(ctx, cursor, globQuote(n.keys.lockPrefix)+"*", 1000).Result()
		if err != nil {
			return leaks, ServerError(err)
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
				return leaks, ServerError(err)
			}
		}
		for i, key := range page {
			if value := values[i].Val(); ttls[i].Val() == -1 && value != "" {
				leaks = append(leaks, Leak{
					Node:     n.Name,
					Resource: strings.TrimPrefix(key, n.keys.lockPrefix),
					Holder:   value[min(OwnerLength, len(value)):],
				})
			}
		}
		if cursor = next; cursor == 0 {
			return leaks, nil
		}
	}
}

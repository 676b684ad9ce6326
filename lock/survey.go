package lock

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// InspectAll is [Locker.Inspect] for many resources, in their order, and asks each node once for all of them. It is
// for display. If too few nodes answered to decide about some resources, the error says so, and those are reported
// without a holder.
func (l *Locker) InspectAll(ctx context.Context, resources []string) ([]leasing.Inspection, error) {
	for _, resource := range resources {
		if err := fence.ValidateResource(resource); err != nil {
			return nil, err
		}
	}
	said := make([][]nodeLock, len(l.nodes))
	var asks sync.WaitGroup
	for i, n := range l.nodes {
		asks.Go(func() { said[i] = n.survey(ctx, resources) })
	}
	asks.Wait()
	found := make([]leasing.Inspection, len(resources))
	var errs error
	for at, resource := range resources {
		all := make([]nodeLock, len(l.nodes))
		for i := range l.nodes {
			all[i] = said[i][at]
		}
		var err error
		if found[at], err = l.judged(resource, all); err != nil && errs == nil {
			errs = err
		}
	}
	return found, errs
}

// failure is err, unless it says that a key does not exist.
func failure(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// InspectAll asks each node once.
func (s source) InspectAll(ctx context.Context, resources []string) ([]leasing.Inspection, error) {
	all, err := s.l.InspectAll(ctx, resources)
	return all, sourceError(err)
}

var _ leasing.Surveyor = source{}

// survey is one node's view of each resource. A lock that ends between the two queries is reported as over.
func (n *node) survey(ctx context.Context, resources []string) []nodeLock {
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	found := make([]nodeLock, len(resources))
	values, ttls := make([]*redis.StringCmd, len(resources)), make([]*redis.DurationCmd, len(resources))
	waiters := make([]*redis.IntCmd, len(resources))
	fields := make([]string, len(resources))
	var counters *redis.SliceCmd
	_, err := n.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, resource := range resources {
			values[i] = p.Get(ctx, n.keys.lock(resource))
			ttls[i] = p.PTTL(ctx, n.keys.lock(resource))
			waiters[i] = p.ZCard(ctx, n.keys.waitPrefix+resource)
			fields[i] = counterField(resource)
		}
		if len(fields) > 0 {
			counters = p.HMGet(ctx, n.keys.h, fields...)
		}
		return nil
	})
	for i := range found {
		nl := nodeLock{Member: leasing.Member{Name: n.name}}
		// The pipeline returns the first error: a lock that is free hides what follows.
		failed := cmp.Or(failure(err), failure(values[i].Err()), ttls[i].Err(), waiters[i].Err(), counters.Err())
		switch {
		case failed != nil:
			nl.Err = serverError(failed)
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

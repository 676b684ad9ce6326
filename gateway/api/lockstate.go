package api

import (
	"context"
	"strconv"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/wire"
)

// lockAnswer is the lock's state of a resource; err is set if the lock did not answer.
type lockAnswer struct {
	leasing.Inspection

	err error
}

func askLock(ctx context.Context, source Leases, resource string) (a lockAnswer) {
	a.Inspection, a.err = leasing.One(source.Inspect(ctx, resource))
	return a
}

// lockOf returns the holder of a lock, in JSON. The servers' names and errors contain addresses, so only callers that
// may inspect everything get them; others get numbers.
func lockOf(state leasing.Inspection, servers bool) *wire.Lock {
	answer := &wire.Lock{Holder: state.Holder, Token: optionalToken(state.Token), TTLMS: ttlMS(state.Locked, state.TTL), Waiters: state.Waiters, Servers: []wire.LockServer{}}
	for i, m := range state.Members {
		server := wire.LockServer{Name: m.Name, Locked: m.Locked, Holder: m.Holder, Token: optionalToken(m.Token), TTLMS: ttlMS(m.Locked, m.TTL), Waiters: m.Waiters}
		if m.Err != nil {
			why := noAnswer
			if servers {
				why = m.Err.Error()
			}
			server.Error = &why
		}
		if !servers {
			server.Name = numberOf(i)
		}
		answer.Servers = append(answer.Servers, server)
	}
	return answer
}

// noAnswer replaces a server's error for callers that may not inspect everything.
const noAnswer = "no answer"

// numberOf replaces a server's name for callers that may not inspect everything.
func numberOf(i int) string { return strconv.Itoa(i + 1) }

// withoutNames returns the nodes without their names, and without warnings, which contain the names.
func withoutNames(nodes []wire.NodeStatus) []wire.NodeStatus {
	all := make([]wire.NodeStatus, len(nodes))
	for i, n := range nodes {
		all[i] = wire.NodeStatus{Name: numberOf(i), State: n.State, QuarantineMS: n.QuarantineMS}
	}
	return all
}

func ttlMS(locked bool, ttl time.Duration) *int64 {
	if !locked || ttl < 0 {
		return nil
	}
	ms := ttl.Milliseconds()
	return &ms
}

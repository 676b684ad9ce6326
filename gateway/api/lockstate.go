package api

import (
	"strconv"
	"time"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// lockOf says who holds a lock, in JSON. Which servers there are, and why one does not answer, is
// for who may inspect everything: names and errors have addresses. Others are told numbers.
func lockOf(state leasing.Inspection, servers bool) *wire.Lock {
	answer := &wire.Lock{Holder: state.Holder, Token: issued(state.Token), TTLMS: ttlMS(state.Locked, state.TTL), Waiters: state.Waiters, Servers: []wire.LockServer{}}
	for i, m := range state.Members {
		server := wire.LockServer{Name: m.Name, Locked: m.Locked, Holder: m.Holder, Token: issued(m.Token), TTLMS: ttlMS(m.Locked, m.TTL), Waiters: m.Waiters}
		if m.Err != nil {
			why := noAnswer
			if servers {
				why = m.Err.Error()
			}
			server.Error = &why
		}
		if !servers {
			server.Name = numbered(i)
		}
		answer.Servers = append(answer.Servers, server)
	}
	return answer
}

// issued is a token in JSON, where 0 is none: [fence.ParseToken] refuses it.
func issued(t fence.Token) *fence.Token {
	if t == 0 {
		return nil
	}
	return &t
}

// noAnswer stands for a server's error where the caller may not inspect everything.
const noAnswer = "no answer"

// numbered is the name of a server for a caller who may not see its own.
func numbered(i int) string { return strconv.Itoa(i + 1) }

// unnamed are nodes without their names, and without warnings, which name them.
func unnamed(nodes []wire.NodeStatus) []wire.NodeStatus {
	all := make([]wire.NodeStatus, len(nodes))
	for i, n := range nodes {
		all[i] = wire.NodeStatus{Name: numbered(i), State: n.State, QuarantineMS: n.QuarantineMS}
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

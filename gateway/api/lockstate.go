package api

import (
	"time"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence/leasing"
)

// lockOf says who holds a lock, in JSON.
func lockOf(state leasing.Inspection) *wire.Lock {
	answer := &wire.Lock{Holder: state.Holder, Token: state.Token, TTLMS: ttlMS(state.Locked, state.TTL), Waiters: state.Waiters, Servers: []wire.LockServer{}}
	for _, m := range state.Members {
		server := wire.LockServer{Name: m.Name, Locked: m.Locked, Holder: m.Holder, Token: m.Token, TTLMS: ttlMS(m.Locked, m.TTL), Waiters: m.Waiters}
		if m.Err != nil {
			why := m.Err.Error()
			server.Error = &why
		}
		answer.Servers = append(answer.Servers, server)
	}
	return answer
}

func ttlMS(locked bool, ttl time.Duration) *int64 {
	if !locked || ttl < 0 {
		return nil
	}
	ms := ttl.Milliseconds()
	return &ms
}

package api

import (
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// lockState is who holds a lock, in JSON.
type lockState struct {
	Holder  string       `json:"holder"` // "": nobody
	Token   fence.Token  `json:"token"`
	TTLMS   *int64       `json:"ttl_ms"` // null: it never ends, or nobody holds it
	Waiters int          `json:"waiters"`
	Servers []lockServer `json:"servers"`
}

type lockServer struct {
	Name    string      `json:"name"`
	Locked  bool        `json:"locked"`
	Holder  string      `json:"holder"`
	Token   fence.Token `json:"token"`
	TTLMS   *int64      `json:"ttl_ms"`
	Waiters int         `json:"waiters"`
	Error   *string     `json:"error"` // null: it answered
}

func lockStateOf(state leasing.Inspection) *lockState {
	answer := &lockState{Holder: state.Holder, Token: state.Token, TTLMS: ttlMS(state.Locked, state.TTL), Waiters: state.Waiters, Servers: []lockServer{}}
	for _, m := range state.Members {
		server := lockServer{Name: m.Name, Locked: m.Locked, Holder: m.Holder, Token: m.Token, TTLMS: ttlMS(m.Locked, m.TTL), Waiters: m.Waiters}
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

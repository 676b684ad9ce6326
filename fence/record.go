package fence

import (
	"errors"
	"time"
)

// ErrNoFence says that a resource has never been armed.
var ErrNoFence = errors.New("resource has no fence yet")

// Record is what the fence of a resource holds.
type Record struct {
	Resource string    `json:"resource"`
	Token    Token     `json:"token"`
	Sealed   bool      `json:"sealed"`
	Holder   string    `json:"holder"`
	ArmedAt  time.Time `json:"armed_at"` // PostgreSQL's clock; for people
	// Undrained counts superseded grants that were not yet seen without a writer
	// when the fence was last raised. Draining does not lower it.
	Undrained int `json:"undrained"`
	// EndedAt is when the grant ended because its lease was released, by PostgreSQL's
	// clock. nil: it has not ended.
	EndedAt *time.Time `json:"ended_at"`
}

// UTC is the record with its times in UTC, as they are shown.
func (r Record) UTC() Record {
	r.ArmedAt = r.ArmedAt.UTC()
	if r.EndedAt != nil {
		ended := r.EndedAt.UTC()
		r.EndedAt = &ended
	}
	return r
}

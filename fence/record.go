package fence

import (
	"errors"
	"strings"
	"time"
)

// RevokedBy begins [Record.Holder] of a grant that nobody has: it was raised to end another.
const RevokedBy = "revoked by "

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

// Revoked reports whether the resource was revoked, and not acquired since. It is for people: a
// holder may call itself so.
func (r Record) Revoked() bool { return strings.HasPrefix(r.Holder, RevokedBy) }

// UTC is the record with its times in UTC, as they are shown.
func (r Record) UTC() Record {
	r.ArmedAt = r.ArmedAt.UTC()
	if r.EndedAt != nil {
		ended := r.EndedAt.UTC()
		r.EndedAt = &ended
	}
	return r
}

package fence

import (
	"errors"
	"strings"
	"time"
)

// RevokedBy begins the [Record.Holder] of a revocation, which raises the fence to a grant that no process has.
const RevokedBy = "revoked by "

// ErrNoFence says that a resource has never been armed.
var ErrNoFence = errors.New("resource has no fence yet")

// Record is what the fence of a resource holds.
type Record struct {
	Resource string    `json:"resource"`
	Token    Token     `json:"token"`
	Sealed   bool      `json:"sealed"`
	Holder   string    `json:"holder"`
	ArmedAt  time.Time `json:"armed_at"` // by PostgreSQL's clock; for display
	// Undrained counts superseded grants that may still have had a writer when the fence was last raised. Draining does
	// not lower it.
	Undrained int `json:"undrained"`
	// EndedAt is when the grant ended because its lease was released, by PostgreSQL's clock. nil: it has not ended.
	EndedAt *time.Time `json:"ended_at"`
}

// Revoked reports whether the resource was revoked and not acquired since. Use it for display only: a holder can
// choose a name with this prefix.
func (r Record) Revoked() bool { return strings.HasPrefix(r.Holder, RevokedBy) }

// UTC is the record with its times in UTC.
func (r Record) UTC() Record {
	r.ArmedAt = r.ArmedAt.UTC()
	if r.EndedAt != nil {
		ended := r.EndedAt.UTC()
		r.EndedAt = &ended
	}
	return r
}

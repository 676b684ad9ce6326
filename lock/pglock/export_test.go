package pglock

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/lifetime"
)

// GiveTime lets groups take as long as a busy machine needs, and delays the next group meanwhile.
func GiveTime(s *Source) {
	s.takes.Timeout, s.extends.Timeout, s.frees.Timeout = time.Minute, time.Minute, time.Minute
	s.takes.Pace, s.extends.Pace, s.frees.Pace = time.Hour, time.Hour, time.Hour
}

// CloseInTime lets Close give back what it has however busy the machine is. Call it before the first lease.
func CloseInTime(s *Source) { s.life = lifetime.New(time.Minute, leasing.ErrClosed) }

// Extending is how many renewals wait for the group before them.
func Extending(s *Source) int { return s.extends.Waiting() }

// Lost reports whether an error leaves the outcome of a statement unknown.
var Lost = lost

// FreeBack frees once what an attempt of the owner may have taken.
func FreeBack(s *Source, resource, owner string) (freed, answered bool) {
	return s.freeBack(context.Background(), &attempt{resource: resource, owner: owner})
}

package pglock

import (
	"context"
	"time"
)

// GiveTime lets groups take as long as a busy machine needs, and delays the next group meanwhile.
func GiveTime(s *Source) {
	s.takes.Timeout, s.extends.Timeout, s.frees.Timeout = time.Minute, time.Minute, time.Minute
	s.takes.Pace, s.extends.Pace, s.frees.Pace = time.Hour, time.Hour, time.Hour
}

// Extending is how many renewals wait for the group before them.
func Extending(s *Source) int { return s.extends.Waiting() }

// Lost reports whether an error leaves the outcome of a statement unknown.
var Lost = lost

// FreeBack frees once what an attempt of the owner may have taken.
func FreeBack(s *Source, resource, owner string) (freed, answered bool) {
	return s.freeBack(context.Background(), &attempt{resource: resource, owner: owner})
}

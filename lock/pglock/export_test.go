package pglock

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/fence/clock/clocktest"
	"github.com/fencegate/fencegate/fence/leasing"
)

// WithClock gives a configuration's source a clock.
func (c *Config) WithClock() *clocktest.Clock {
	k := clocktest.New()
	c.clock = k.Clock
	return k
}

// GiveTime lets groups take as long as a busy machine needs, and delays the next group for as long.
func GiveTime(s *Source) {
	s.store.takes.Timeout, s.store.extends.Timeout, s.store.frees.Timeout = time.Minute, time.Minute, time.Minute
	s.store.takes.Pace, s.store.extends.Pace, s.store.frees.Pace = time.Hour, time.Hour, time.Hour
}

// CloseInTime lets Close give back its leases however busy the machine is.
func (c Config) CloseInTime() Config {
	c.closeTimeout = time.Minute
	return c
}

// Extending is how many renewals wait for the group before them.
func Extending(s *Source) int { return s.store.extends.Waiting() }

// Lost reports whether an error leaves the outcome of a statement unknown.
var Lost = lost

// FreeBack frees once what an attempt of the owner may have taken.
func FreeBack(s *Source, resource, owner string) (freed, answered bool) {
	return s.store.freeBack(context.Background(), &attempt{r: leasing.Request{Resource: resource}, owner: owner})
}

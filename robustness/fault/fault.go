// Package fault defines the faults of a run and plans when they happen.
//
// The guarantee: a fault that began is healed when [Play] returns, whether it lasted as planned or its context ended. A
// fault that could not be done is reported. A plan follows from its seed alone, so that a run can be repeated.
//
//	plan, err := fault.Plan(fault.Wish{Seed: seed, Round: 3, Length: 30 * time.Second})
//	…
//	result := fault.Play(ctx, plan, fault.On(cluster), fault.Scene{Round: 3, Resources: resources, Operator: operator})
package fault

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// Fault is a fault of a cluster. It heals itself: when Run returns, nothing of it remains.
type Fault struct {
	Name   string // for example "redis-kill" or "net-hold/client-gateway"
	What   string
	Weight int  // how often it is drawn, relative to the others
	Needs  Need // what a cluster must have for it
	// Shortest and Longest bound its duration. A plan draws a duration between them, short ones more often.
	Shortest, Longest time.Duration
	// Tail bounds what follows: a restart, an admission, a drain.
	Tail time.Duration
	// Run begins the fault, waits, and heals it. If ctx ends it heals at once, which is no error.
	Run func(ctx context.Context, s *Stage) error
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

// Need is a part that not every cluster has.
type Need string

// The needs.
const (
	NeedsDisk     Need = "disk"     // a limited file system for the blobs
	NeedsBlobs    Need = "blobs"    // an S3 service for the blobs
	NeedsStandby  Need = "standby"  // a streaming standby
	NeedsRedis    Need = "redis"    // nodes that the leases come from
	NeedsBalancer Need = "balancer" // in front of the gateways
)

var (
	// ErrNotDone reports that a fault could not be done: the part that it needs was unavailable.
	ErrNotDone = errors.New("the fault could not be done")
	// ErrNotHealed reports that a part did not recover within its time.
	ErrNotHealed = errors.New("not healed")
	// ErrWrong reports that the product itself reported damage, for example objects verify.
	ErrWrong = errors.New("the product reports damage")
)

// All lists the faults, sorted by name.
var All = slices.SortedFunc(slices.Values(slices.Concat(partFaults, netFaults(), postgresFaults, operatorFaults)),
	func(a, b Fault) int { return strings.Compare(a.Name, b.Name) })

// byName indexes faults by name: a plan looks up thousands.
var byName = sync.OnceValue(func() map[string]Fault {
	found := map[string]Fault{}
	for _, f := range All {
		found[f.Name] = f
	}
	return found
})

// is reports whether the fault has one of these names, or a name below it: "net" matches each net-…, and "net-hold" each
// net-hold/….
func is(fault string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		rest, ok := strings.CutPrefix(fault, name)
		return ok && (rest == "" || rest[0] == '-' || rest[0] == '/')
	})
}

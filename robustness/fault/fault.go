// Package fault is what a run does to the product, and when.
//
// The guarantee: a fault that began is healed when [Play] returns, whether it lasted as long as planned or its context
// ended; what could not be done is told and never silent; and a plan follows from its seed alone, so that a run can be
// played again.
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

// Fault is one thing that can happen to a cluster. It heals itself: when Run returns, nothing of it is left.
type Fault struct {
	Name   string // such as "redis-kill" or "net-hold/client-gateway"
	What   string
	Weight int  // how often it is drawn, compared with the others
	Needs  Need // what a cluster must have for it
	// Shortest and Longest bound how long it lasts. A plan draws the time between them, short times more often.
	Shortest, Longest time.Duration
	// Tail bounds what comes after that: a restart, an admission, a drain.
	Tail time.Duration
	// Run begins the fault, waits, and heals it: at once when ctx ends, which is no error.
	Run func(ctx context.Context, s *Stage) error
}

// Need is what not every cluster has.
type Need string

// The needs.
const (
	NeedsDisk    Need = "disk"    // a small file system for the blobs
	NeedsBlobs   Need = "blobs"   // an S3 service that keeps the blobs
	NeedsStandby Need = "standby" // a PostgreSQL that streams
)

var (
	// ErrNotDone means that a fault could not be done: the part of the system that it needs was away.
	ErrNotDone = errors.New("the fault could not be done")
	// ErrNotHealed means that something did not come back within its time.
	ErrNotHealed = errors.New("not healed")
	// ErrWrong means that the product itself reported damage, such as objects verify.
	ErrWrong = errors.New("the product reports damage")
)

// All are the faults, in the order of their names.
var All = sorted(
	clientFaults, gatewayFaults, redisFaults, netFaults(), postgresFaults, blobsFaults, machineFaults, operatorFaults, rollingFaults,
)

func sorted(lists ...[]Fault) []Fault {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b Fault) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Named returns the fault of that name.
func Named(name string) (Fault, bool) {
	f, ok := named()[name]
	return f, ok
}

// named finds faults by their names: a plan asks for thousands.
var named = sync.OnceValue(func() map[string]Fault {
	found := map[string]Fault{}
	for _, f := range All {
		found[f.Name] = f
	}
	return found
})

// is says whether the fault has this name, or a name that goes on after it: "net" is each net-…, and "net-hold" each
// net-hold/….
func is(fault, name string) bool {
	rest, ok := strings.CutPrefix(fault, name)
	return ok && (rest == "" || rest[0] == '-' || rest[0] == '/')
}

func isAny(fault string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return is(fault, name) })
}

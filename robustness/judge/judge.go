// Package judge decides whether a run kept what the product promises. It
// compares what clients were told (package history) with the order of effects
// that triggers recorded in the database (effects.sql).
//
// [Examine] judges evidence that is complete. A [Judge] takes the evidence of a
// run round by round, and examines again only the resources that changed.
//
// The evidence of a round is collected while the clients are at rest: first the
// histories, then the effects. A read that is missing hides a fault at most. A
// write that is missing makes its effect one from nowhere.
package judge

import (
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// Evidence is what a run left behind. Given to a Judge it may hold what is new only; what it repeats does no harm.
type Evidence struct {
	Ops     []history.Op   // of clients, of operators and of the auditor, who is client 0; the last record of an ID counts
	Effects []Effect       // judged.effects, from the primary
	Lost    []Loss         // what failovers took back
	Stops   []history.Span // when a process, or all, did not run; What is Killed where it ended
	Outages []history.Span // while faults were active: for people who read the report
	// Returned is while an old primary could be read again. Reads are not fenced: what such a read saw proves nothing.
	Returned []history.Span

	// Healed is when a round's faults were over.
	Healed map[int]int64
	// Resting is since when a client has been at rest.
	Resting map[int]int64
	// Files says of a file register, such as "file:robust/r3-7/data", whether its object is there and can be read.
	Files map[string]bool
	// Sizes are samples taken between rounds, for one process from its start to its end. The last word of a
	// name is the unit: "gateway 2#1 goroutines".
	Sizes map[string][]float64
	// Slack is how much of a unit may come and go.
	Slack map[string]float64

	// Exclusion says that no clock of a node was set: locks promise then that no two believe in a lease at once.
	Exclusion bool

	Async  bool          // acknowledged commits may be lost in a failover: what Lost lists is excused
	Now    int64         // when the evidence was complete; 0: nothing more will come
	Budget time.Duration // for the search for linearizations; 0: one second
}

// Killed is the What of a stop that ended its process: its calls get no answer.
const Killed = "kill"

// Effect is a row of judged.effects.
type Effect struct {
	Seq       int64
	Register  string
	Value     string
	Overwrote string
	Resource  string
	Token     int64
	Version   string
	LSN       string
}

// Loss is what one failover took back: what the old primary had and the new one has not.
type Loss struct {
	From    int64 // the old primary answered nothing after it
	To      int64 // the new primary answered nothing before it
	Effects []Effect
	Fences  []Fence
}

// Fence is the fence of a resource that a failover took back from Was to Token.
type Fence struct {
	Resource string
	Token    int64
	Was      int64
}

// Kind is what went wrong.
type Kind string

// The kinds.
const (
	LostWrite       Kind = "lost"
	RefusedButDone  Kind = "refused-but-done"
	FailedButDone   Kind = "failed-but-done"
	DoneTwice       Kind = "done-twice"
	FromNowhere     Kind = "from-nowhere"
	Stale           Kind = "stale"
	LostUpdate      Kind = "lost-update"
	OrderBroken     Kind = "order"
	StaleRead       Kind = "stale-read"
	PhantomRead     Kind = "phantom-read"
	WrongBytes      Kind = "wrong-bytes"
	Torn            Kind = "torn"
	Unreadable      Kind = "unreadable" // a register that the auditor, or a client, could not read
	TokenTwice      Kind = "token-twice"
	TokenFalls      Kind = "token-falls"
	Revoked         Kind = "revoked"
	NotLinearizable Kind = "not-linearizable"
	Late            Kind = "late"
	NotFree         Kind = "not-free"
	NotRecovered    Kind = "not-recovered"
	Overlap         Kind = "overlap" // two holders at once, although no clock of a node was set
	Leak            Kind = "leak"
)

// Finding is one promise that was not kept.
type Finding struct {
	Kind  Kind
	Where string       // register, resource, surface or process
	Text  string       // one sentence; its times are seconds since Report.Start
	Ops   []history.Op // those involved; the first is the one that should not be
}

// Report is the judge's answer.
type Report struct {
	Findings []Finding
	Counts   Counts
	Start    int64 // the beginning of the first call
	Outages  []history.Span
}

// Counts are facts and no faults.
type Counts struct {
	Ops          map[string]int // "surface action outcome"
	Effects      int
	Acquisitions int            // leases that were granted
	Refusals     map[string]int // by code
	Overlaps     int            // leases that began while an older one was believed in
	Longest      time.Duration  // of the overlaps
	Excused      map[string]int // by what an asynchronous failover took back
	OverBudget   int            // calls on registers whose linearization was not found in time
}

// Examine judges evidence that is complete.
func Examine(evidence Evidence) Report {
	return new(Judge).Add(evidence)
}

// Package judge checks a run against the product's guarantees. It compares the answers that clients received (package
// history) with the order of effects that triggers recorded in the database (effects.sql).
//
// [Examine] judges complete evidence. A [Judge] takes the evidence of a run round by round, and examines only the
// resources that changed.
//
// Collect the evidence of a round while the clients are at rest: first the histories, then the effects. A missing read
// can only hide a fault. A missing write makes its effect a finding, one from nowhere.
package judge

import (
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// Evidence is the evidence of a run. A Judge may get only what is new; repetitions do no harm.
type Evidence struct {
	Ops     []history.Op   // of clients, operators and the auditor (client 0); the last record of an ID counts
	Effects []Effect       // judged.effects, from the primary
	Lost    []Loss         // what failovers took back
	Stops   []history.Span // when a process, or all, did not run; What is Killed if it ended
	Outages []history.Span // when faults were active, for readers of the report
	// Returned is when an old primary could be read again. Reads are not fenced, so such a read proves nothing.
	Returned []history.Span

	// Paces are what the machine did. Time that it lost counts in no bound; none: nothing was lost.
	Paces history.Paces

	// Healed is when a round's faults had ended.
	Healed map[int]int64
	// Resting is since when a client has been at rest.
	Resting map[int]int64
	// Sizes are samples taken between rounds, for one process from its start to its end. The last word of a name is the
	// unit: "gateway 2#1 goroutines".
	Sizes map[string][]float64
	// Slack is how much a size may vary, by unit.
	Slack map[string]float64

	// WallAhead is the most by which the machine's wall clock was ahead of its monotonic clock. It gives each effect the
	// earliest moment at which its trigger ran. 0: unknown, and effects are judged by the beginnings of their writes.
	WallAhead int64

	// Majority means that a release is done when a majority of several nodes has it.
	Majority bool

	// Exclusion means that no node's clock was set: then locks guarantee that a lease has one holder at a time.
	Exclusion bool

	Async  bool          // a failover may lose acknowledged commits: those in Lost are excused
	Now    int64         // when the evidence was complete; 0: no more will come
	Budget time.Duration // for the search for linearizations; 0: one second
}

// Killed is the What of a stop that ended its process: its calls have no answer.
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
	Wall      int64 // when its trigger ran, in nanoseconds of PostgreSQL's wall clock, which is the machine's; 0: unknown
}

// Loss is what one failover took back: the effects that only the old primary has.
type Loss struct {
	From    int64 // the old primary's last possible answer
	To      int64 // the new primary's first possible answer
	Effects []Effect
	Fences  []Fence
}

// Fence is the fence of a resource that a failover set back from Was to Token.
type Fence struct {
	Resource string
	Token    int64
	Was      int64
}

// Kind is the kind of a violation.
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
	Unreadable      Kind = "unreadable" // the auditor, or a client, could not read a register
	TokenTwice      Kind = "token-twice"
	TokenFalls      Kind = "token-falls"
	Revoked         Kind = "revoked"
	NotLinearizable Kind = "not-linearizable"
	Overlap         Kind = "overlap" // two holders at once, although no node's clock was set
	Broken          Kind = "broken"  // a panic, a process that ended by itself, damage that the product reported
	Late            Kind = "late"
	NotFree         Kind = "not-free"
	NotRecovered    Kind = "not-recovered"
	Leak            Kind = "leak"
)

// Safe reports that nothing unsafe happened: something took too long, or grew.
func (k Kind) Safe() bool { return k == Late || k == NotFree || k == NotRecovered || k == Leak }

// Finding is one violated guarantee.
type Finding struct {
	Kind  Kind
	Where string       // register, resource, surface or process
	Text  string       // one sentence; its times are seconds since Report.Start
	Ops   []history.Op // the calls involved; the first is the wrong one
}

// Report is the judge's report.
type Report struct {
	Findings []Finding
	Counts   Counts
	Start    int64 // when the first call began
	Outages  []history.Span
}

// Counts are counts that are no faults.
type Counts struct {
	Ops          map[string]int // "surface action outcome"
	Effects      int
	Acquisitions int            // leases that were granted
	Refusals     map[string]int // by code
	Overlaps     int            // leases that began during an older one's validity
	Longest      time.Duration  // of the overlaps
	Excused      map[string]int // by the failover loss that excuses them
	Slow         map[Kind]int   // what was excused because the machine was slow
	OverBudget   int            // calls on registers whose linearization was not found in time
}

// Examine judges complete evidence.
func Examine(evidence Evidence) Report {
	return new(Judge).Add(evidence)
}

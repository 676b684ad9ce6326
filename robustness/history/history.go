// Package history is what clients, operators and the auditor of a run did and
// were told: one [Op] for each call, with the moments of the machine's monotonic
// clock between which it ran.
//
// A call that changes something is recorded twice: as [Begun] before it is
// made, and with its outcome afterwards. The last record of an ID counts, so
// what a process was at when it was killed stays unknown and is never missing.
//
// A register is a place that holds one value: a row ("row:robust/r3-7") or an
// object ("file:robust/r3-7/data"). A write's value is its own ID, so that
// whoever reads it knows who wrote it.
package history

// Action is what an Op did.
type Action string

// The actions.
const (
	Acquire Action = "acquire" // a lease on Resource; Token is its token, Until how long the holder may believe in it
	Renew   Action = "renew"   // of the lease with Token; Until: as above
	Release Action = "release" // of the lease with Token
	Revoke  Action = "revoke"  // by an operator: Token is the lowest that may still write
	Read    Action = "read"    // one register: Saw
	Write   Action = "write"   // the registers of Based, to the value ID, under Token
)

// Outcome is what the caller was told, by the product's own words: an error
// that says that nothing was done is believed, and judged.
type Outcome string

// The outcomes.
const (
	Begun   Outcome = "begun"   // made and not answered: as Unknown
	Done    Outcome = "done"    // acknowledged
	Refused Outcome = "refused" // by the fence, the lock or a limit: Code says why; nothing was done
	Failed  Outcome = "failed"  // by an error that says that nothing was done
	Unknown Outcome = "unknown" // it may have been done, or may still be
)

// Op is one call.
type Op struct {
	ID       string  `json:"id"` // unique in a run: "c7.2-123" is worker 2 of client 7
	Client   int     `json:"client"`
	Round    int     `json:"round"`
	Surface  string  `json:"surface"`
	Action   Action  `json:"action"`
	Outcome  Outcome `json:"outcome"`
	Resource string  `json:"resource,omitempty"`
	Token    int64   `json:"token,omitempty"`
	// Based is what a write was computed from: for each register that it sets, the value
	// that its holder had read there under the same lease; "" where there was none.
	Based map[string]string `json:"based,omitempty"`
	// Register and Saw are a read's. Saw is the ID of the write whose value it was, "" for none.
	Register string `json:"register,omitempty"`
	Saw      string `json:"saw,omitempty"`
	// Under says that a read was made under a lease, with Token, and that writes are computed from it.
	Under bool `json:"under,omitempty"`
	// Wrong is what the client itself saw to be wrong: bytes that nobody wrote, half of an object.
	Wrong string `json:"wrong,omitempty"`
	Code  string `json:"code,omitempty"`  // ZF001, held, …
	Error string `json:"error,omitempty"` // for people; without seals
	// HeldBy is the token of the lease that an acquisition was refused for, where it is told.
	HeldBy int64 `json:"held_by,omitempty"`

	// Nanoseconds of CLOCK_MONOTONIC, the same for all processes of the machine.
	Begin int64 `json:"begin"`
	End   int64 `json:"end,omitempty"`
	Until int64 `json:"until,omitempty"`
	Limit int64 `json:"limit,omitempty"` // when the caller's own deadline was
}

// Span is a stretch of the monotonic clock in which a process, or the machine (Client -1), did not run as usual.
type Span struct {
	Client int    `json:"client"` // -1: every process
	What   string `json:"what"`
	From   int64  `json:"from"`
	To     int64  `json:"to"`
}

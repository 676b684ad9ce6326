// Package history records the calls of a run's clients, operators and auditor, and their answers: one [Op] for each
// call, with its begin and end on the machine's monotonic clock.
//
// A mutating call is recorded twice: as [Begun] before it is made, and with its outcome afterwards. The last record of
// an ID counts, so the last call of a killed process is unknown and never missing.
//
// A register is a place that holds one value: a row ("row:robust/r3-7") or an object ("file:robust/r3-7/data"). A
// write's value is its own ID, so a reader knows who wrote it.
package history

// Action is the kind of an Op.
type Action string

// The actions.
const (
	Acquire Action = "acquire" // a lease on Resource; Token is its token, Until the holder's deadline
	Renew   Action = "renew"   // of the lease with Token; Until: as above
	Release Action = "release" // of the lease with Token
	Revoke  Action = "revoke"  // by an operator: Token is the lowest that may still write
	Read    Action = "read"    // one register: Saw
	Write   Action = "write"   // sets the registers of Based to the value ID, under Token
)

// Outcome is the outcome that the product reported to the caller. If an error says that nothing was done, that is
// accepted, and judged.
type Outcome string

// The outcomes.
const (
	Begun   Outcome = "begun"   // made and not answered; treated as Unknown
	Done    Outcome = "done"    // acknowledged
	Refused Outcome = "refused" // by the fence, the lock or a limit: Code is the reason; nothing was done
	Failed  Outcome = "failed"  // an error that says that nothing was done
	Unknown Outcome = "unknown" // it may have been done, or may still be done
)

// Op is one call.
type Op struct {
	ID       string  `json:"id"` // unique in a run: "c7.2-123" is of worker 2 of client 7
	Client   int     `json:"client"`
	Round    int     `json:"round"`
	Surface  string  `json:"surface"`
	Action   Action  `json:"action"`
	Outcome  Outcome `json:"outcome"`
	Resource string  `json:"resource,omitempty"`
	Token    int64   `json:"token,omitempty"`
	// Based holds, for each register that a write sets, the value on which it is based: the one that its holder had
	// read under the same lease; "" if there was none.
	Based map[string]string `json:"based,omitempty"`
	// Register and Saw belong to a read. Saw is the ID of the write whose value was read, "" for none.
	Register string `json:"register,omitempty"`
	Saw      string `json:"saw,omitempty"`
	// Under means that a read was made under a lease, with Token, and that writes are based on it.
	Under bool `json:"under,omitempty"`
	// Wrong is an error that the client itself detected: bytes that no client wrote, half of an object.
	Wrong string `json:"wrong,omitempty"`
	Code  string `json:"code,omitempty"`  // ZF001, held, …
	Error string `json:"error,omitempty"` // the text, without seals
	// HeldBy is the token of the lease because of which an acquisition was refused, if known.
	HeldBy int64 `json:"held_by,omitempty"`

	// Nanoseconds of CLOCK_MONOTONIC, the same for all processes of the machine.
	Begin int64 `json:"begin"`
	End   int64 `json:"end,omitempty"`
	Until int64 `json:"until,omitempty"`
	Limit int64 `json:"limit,omitempty"` // the caller's own deadline
}

// Span is a time on the monotonic clock in which a process, or the machine (Client -1), did not run normally.
type Span struct {
	Client int    `json:"client"` // -1: every process
	What   string `json:"what"`
	From   int64  `json:"from"`
	To     int64  `json:"to"`
}

package client

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// surface is one way to lease, read and write, as a user's program would go it:
// it shows what the product says and corrects nothing. Its methods bound their
// time by ctx alone. It is safe for concurrent use.
type surface interface {
	// registers are those of the resource that a lease reads and writes: one, or the row and the file.
	registers(resource string) []string
	// acquire waits for the lease as long as ctx lasts, or with ask.try only tries once.
	acquire(ctx context.Context, a ask) (holding, error)
	close()
}

// ask is for a lease.
type ask struct {
	id       string // of the acquisition's Op: the name of the holder, wherever the product takes one
	resource string
	ttl      time.Duration
	try      bool
}

// holding is one lease. One goroutine at a time uses it, but for renew and the giveBack of one that is hasty, which may
// come while it writes or reads.
type holding interface {
	token() int64
	deadline() time.Time // until when its holder may believe in it; zero: it is renewed by itself, as long as it can be
	// read returns the value of the register, and what is wrong with what was read, if anything.
	read(ctx context.Context, register string) (saw, wrong string, err error)
	write(ctx context.Context, w write) error
	renew(ctx context.Context) error // not called where the deadline is zero
	release(ctx context.Context) error
	forget() // frees what the client holds of it; the lease is left to its TTL
}

// hasty is a holding whose lease can be given back while a write under it is under way: they share no connection.
type hasty interface {
	giveBack(ctx context.Context) error
}

// errNoRenewal is what a holding answers that renews by itself.
var errNoRenewal = errors.New("the lease is renewed by itself")

// write is to set every register of the holding to the value id.
type write struct {
	id string
	// pause is called where a program may be stopped: between statements, before COMMIT, in the middle of a body. It
	// takes as long as the plan of this write says, and ends early with ctx.
	pause func(ctx context.Context)
	// nap is pause, for one that another program makes: how long it is, or 0.
	nap func() time.Duration
	// noted records that a register was read on the way, in a transaction that began then (history.Now).
	noted func(began int64, register, saw string)
	// chance is true once in so many times: for the choices of a write.
	chance func(in int) bool
}

// failure is an error of a surface, with what it says of the outcome. Every other error is Unknown for what changes something.
type failure struct {
	outcome history.Outcome // Refused, Failed or Unknown
	code    string          // ZF001, held, …
	heldBy  int64           // the token of the lease that stood in the way, where it is told
	holder  string          // the name of its holder, where it is told: the ID of an acquisition
	err     error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

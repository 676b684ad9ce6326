package client

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// surface is one way to lease, read and write, as a user's program would. It reports the product's answers and corrects
// nothing. Only ctx bounds the time of its methods. It is safe for concurrent use.
type surface interface {
	// registers returns the resource's registers that a lease reads and writes: one, or the row and the file.
	registers(resource string) []string
	// acquire waits for the lease until ctx ends, or with ask.try only tries once.
	acquire(ctx context.Context, a ask) (holding, error)
	close()
}

// ask is a request for a lease.
type ask struct {
	id       string // of the acquisition's Op; used as the holder's name if the product accepts one
	resource string
	ttl      time.Duration
	try      bool
	whole    bool // read objects whole, in no other way
}

// holding is one lease. One goroutine at a time uses it, except that renew, and giveBack of a hasty one, may run while
// it writes or reads.
type holding interface {
	token() int64
	deadline() time.Time // the end of the lease for its holder; zero: it is renewed automatically while possible
	// read returns the register's value, and what is wrong with it, if anything.
	read(ctx context.Context, register string) (saw, wrong string, err error)
	write(ctx context.Context, w write) error
	renew(ctx context.Context) error // not called if the deadline is zero
	release(ctx context.Context) error
	forget() // frees the client's resources; the lease is left to its TTL
}

// hasty is a holding whose lease can be released during a write, because the two use different connections.
type hasty interface {
	giveBack(ctx context.Context) error
}

// errNoRenewal is returned by holdings that renew automatically.
var errNoRenewal = errors.New("the lease is renewed by itself")

// write sets every register of the holding to the value id.
type write struct {
	id string
	// pause is called where a program may be stopped: between statements, before COMMIT, in the middle of a body. It
	// lasts as long as the write's plan says, and ends early with ctx.
	pause func(ctx context.Context)
	// nap is pause for another program: it returns the length, or 0.
	nap func() time.Duration
	// noted records that a register was read in a transaction that began then (history.Now).
	noted func(began int64, register, saw string)
	// chance is true once in the given number of times, for the choices of a write.
	chance func(in int) bool
}

// failure is a surface's error with its outcome. Any other error of a mutating call is Unknown.
type failure struct {
	outcome history.Outcome // Refused, Failed or Unknown
	code    string          // ZF001, held, …
	heldBy  int64           // the token of the blocking lease, if known
	holder  string          // the name of its holder, if known: the ID of an acquisition
	err     error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

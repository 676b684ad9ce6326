package runner

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/terminal"
)

// OnLost is what to do with the command when its lease is lost.
type OnLost int

// What to do when the lease is lost.
const (
	Kill OnLost = iota // TERM, then KILL before another can hold the lease
	Warn               // warn, and let it run; the storage refuses its writes
)

// ParseOnLost reads "kill" or "warn".
func ParseOnLost(s string) (OnLost, error) {
	switch s {
	case "kill":
		return Kill, nil
	case "warn":
		return Warn, nil
	}
	return 0, &fence.InvalidError{Field: "on-lost", Reason: fmt.Sprintf("is %q; it must be kill or warn", s)}
}

// OnHeld is what to do while another holds the resource.
type OnHeld int

// What to do while another holds the resource.
const (
	Fail OnHeld = iota // an error after the wait
	Skip               // [ErrSkipped] after the wait
	Wait               // wait without limit
)

// ParseOnHeld reads "fail", "skip" or "wait".
func ParseOnHeld(s string) (OnHeld, error) {
	switch s {
	case "fail":
		return Fail, nil
	case "skip":
		return Skip, nil
	case "wait":
		return Wait, nil
	}
	return 0, &fence.InvalidError{Field: "on-held", Reason: fmt.Sprintf("is %q; it must be fail, skip or wait", s)}
}

// Config configures a run.
type Config struct {
	Client  *client.Client
	Acquire client.AcquireRequest
	// Resources are acquired together, all or none; empty: Acquire.Resource. S3 credentials are for one resource: with
	// several the command gets those of S3.Resource.
	Resources []string
	Command   []string
	Environ   []string // the variables that the command inherits; the grants are added
	OnLost    OnLost
	// OnHeld is what to do if another holds the resource after Acquire.Wait. That may exceed a gateway's longest wait;
	// an unavailable gateway is retried until then.
	OnHeld OnHeld
	S3     S3Access
	// PGURLs names variables that hold the database's address, as a URL. The command finds the gateway's address there,
	// with the grant in it.
	PGURLs []string

	// Signals are the signals that this process receives. The first one is expected to end Run's context too; one that
	// comes at least half a second later kills the command.
	Signals <-chan os.Signal
	// Shared is the terminal that the command shares with this process. nil: INTs typed there end the command as others do.
	Shared *terminal.Shared

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Say prints progress and warnings, one line each. It is called concurrently, and waits for no reader: the watch over
	// the lease waits for it.
	Say func(format string, args ...any)

	start func(cfg Config, path string) (process, error)   // of tests; nil: a process
	home  func() (folder string, remove func(), err error) // of tests; nil: a folder that goes when this process is killed
}

// Lease is a lease of a run.
type Lease struct {
	Resource string      `json:"resource"`
	Token    fence.Token `json:"token"`
}

// Result is the outcome of a run that started its command.
type Result struct {
	Leases   []Lease // in the byte order of the names
	ExitCode int     // the command's; 128 + the signal's number if a signal ended it
	Lost     error   // why a lease was lost; nil if all were held to the end
	LostOf   Lease   // the lost lease
	Ended    bool    // the command was sent TERM or KILL because of that; false: it ended by itself, or was only warned of
	Killed   bool    // the command, or a process of its group, was killed
}

// process is the command while it runs, or the stand-in of a test.
type process interface {
	done() <-chan int // receives the exit code once
	signal(s syscall.Signal) error
	ended() bool     // it and its group have ended, and the exit code is about to come
	groupGone() bool // for a command that has ended
	unwatched()      // what remains of it may outlive this process
}

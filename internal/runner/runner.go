// Package runner runs a command under one or several leases: it acquires and arms, passes the grants to the command in
// environment variables, renews, and ends the command before another can hold the lease.
//
// The guarantee depends on the scheduling of this process: if it is frozen together with its command, it can't end the
// command. The fence in the storage covers that case: it refuses the command's writes once another holds the lease.
//
//	result, err := runner.Run(ctx, runner.Config{Client: c, Command: []string{"./job"}, …})
package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	processes "github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/terminal"
	"github.com/fencegate/fencegate/wire"
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

// Held is a lease of a run.
type Held struct {
	Resource string      `json:"resource"`
	Token    fence.Token `json:"token"`
}

// Result is the outcome of a run that started its command.
type Result struct {
	Held     []Held // in the byte order of the names
	ExitCode int    // the command's; 128 + the signal's number if a signal ended it
	Lost     error  // why a lease was lost; nil if all were held to the end
	LostOf   Held   // the lost lease
	Ended    bool   // the command was sent TERM or KILL because of that; false: it ended by itself, or was only warned of
	Killed   bool   // the command, or a process of its group, was killed
}

// ErrLate reports that the command was not started, because the lease had no time left.
var ErrLate = errors.New("no time is left of the lease to run the command")

// releaseTimeout bounds the release after the command has ended.
const releaseTimeout = 5 * time.Second

// Run acquires the lease, runs the command and releases the lease. An error means that the command was not started.
// When ctx ends, the command gets SIGTERM, and the lease is kept until it and its process group have stopped. Of
// several leases, a single lost one ends the command.
//
// Background processes of a command that ends by itself are left alone, and no longer have a lease.
func Run(ctx context.Context, cfg Config) (Result, error) {
	// A command that does not exist takes no lease.
	if _, err := find(cfg.Environ, cfg.Command[0]); err != nil {
		return Result{}, err
	}
	leases, err := acquire(ctx, cfg)
	if err != nil {
		return Result{}, err
	}
	w, err := under(ctx, cfg, leases)
	release(ctx, cfg, leases)
	if err != nil {
		return Result{}, err
	}
	return w.result(), nil
}

// under runs the command, and confirms after its end that no lease was lost.
func under(ctx context.Context, cfg Config, leases []client.Lease) (*watch, error) {
	if cfg.start == nil {
		cfg.start = start
	}
	if cfg.home == nil {
		cfg.home = newHome
	}
	home, remove, err := cfg.home()
	if err != nil {
		return nil, fmt.Errorf("folder for the command's settings: %w", err)
	}
	defer remove()
	var creds *provider
	if cfg.Environ, creds, err = provided(ctx, cfg, leases, home); err != nil {
		return nil, err
	}
	if creds != nil {
		defer creds.close()
	}
	// The environment may begin PATH with a wrapper of the command.
	path, err := find(cfg.Environ, cfg.Command[0])
	if err != nil {
		return nil, err
	}
	w := newWatch(cfg, leases)
	if w.due() <= 0 {
		late := w.nearest().lease
		return nil, fmt.Errorf("%w on %q (token %d)", ErrLate, late.Resource, late.Token)
	}
	started, err := cfg.start(cfg, path)
	if err != nil {
		return nil, err
	}
	w.child = started
	defer started.unwatched()
	if cfg.Shared != nil {
		defer cfg.Shared.Ended()
	}
	w.untilExit(ctx)
	w.confirm(ctx)
	return w, nil
}

// newHome makes the folder for the command's settings.
func newHome() (folder string, remove func(), err error) {
	home, err := os.MkdirTemp("", "fencegate-run-")
	if err != nil {
		return "", nil, err
	}
	remove = func() {
		_ = os.RemoveAll(home)
		processes.Removed(home)
	}
	if home, err = filepath.Abs(home); err != nil { // relative folders of PATH are skipped
		remove()
		return "", nil, err
	}
	_ = processes.RemoveAtDeath(home) // start says why there is no watchdog
	return home, remove, nil
}

// release gives back the leases. Its answers do not tell whether one was lost; that is [watch.confirm]'s to ask.
func release(ctx context.Context, cfg Config, leases []client.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	together(leases, func(lease client.Lease) error {
		err := cfg.Client.Release(ctx, lease.Handle)
		if err != nil {
			cfg.Say("could not release %s; it ends by itself within %s: %v", lease.Resource, lease.TTL, err)
		}
		return err
	})
}

// together calls ask for all values in parallel, and returns the error of each.
func together[T any](values []T, ask func(T) error) []error {
	errs := make([]error, len(values))
	var all sync.WaitGroup
	for i, v := range values {
		all.Go(func() { errs[i] = ask(v) })
	}
	all.Wait()
	return errs
}

// provided requests the command's environment. It retries while
// the gateway is unavailable, for as long as the lease has time.
func provided(ctx context.Context, cfg Config, leases []client.Lease, home string) (environ []string, creds *provider, err error) {
	w := newWatch(cfg, leases)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		environ, creds, err = provide(ctx, cfg.Client, leases, needs{cfg.Environ, cfg.S3, cfg.PGURLs, home, cfg.Say})
		if err == nil || !Passes(err) || lost(err) || w.due() <= pause {
			return environ, creds, err
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, nil, err
		}
	}
}

// Why returns the cause of a loss, without the prefix that the lease is lost.
func Why(lost error) string {
	text := lost.Error()
	if text == leasing.ErrLost.Error() {
		return "the gateway does not say why"
	}
	return strings.TrimPrefix(text, leasing.ErrLost.Error()+": ")
}

// Refused describes what happens to the writes of a command whose lease is lost.
func Refused(lost error) string {
	if p, ok := errors.AsType[*client.Problem](lost); ok && p.Recorded != nil {
		return "the fence refuses its writes since then"
	}
	return "its writes are refused once another holds the resource"
}

// lost reports whether err means for certain that the lease is over.
func lost(err error) bool {
	var p *client.Problem
	return errors.As(err, &p) && p.Code == wire.CodeLeaseLost
}

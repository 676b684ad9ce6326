// Package runner runs a command under a lease, or several: it acquires and arms, hands the
// grants to the command by environment variables, renews, and ends the command
// before the lease can be another's.
//
// The guarantee is only as good as the scheduling of this process: frozen
// together with its command it can end nothing. The fence in the storage covers
// that case: what the command writes after the lease is another's is refused.
//
//	result, err := runner.Run(ctx, runner.Config{Client: c, Command: []string{"./job"}, …})
package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// OnLost says what happens to the command when its lease is lost.
type OnLost int

// What to do when the lease is lost.
const (
	Kill OnLost = iota // TERM, then KILL before the lease can be another's
	Warn               // say so, and let it run; the storage refuses its writes
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

// Config is one run.
type Config struct {
	Client  *client.Client
	Acquire client.AcquireRequest
	// Resources are what is acquired, all or none; empty: Acquire.Resource. S3 credentials are of
	// one: of several the command gets those of S3.Resource.
	Resources []string
	Command   []string
	Environ   []string // the variables that the command inherits; the grant's are added
	OnLost    OnLost
	// OnHeld says what follows where another holds the resource. Acquire.Wait comes first;
	// it may be longer than a gateway's longest wait, and a gateway that is away meanwhile
	// is asked again.
	OnHeld OnHeld
	S3     S3Access
	// PGURLs names variables that hold the database's address, as a URL: the command finds
	// the gateway's there, with the grant in it.
	PGURLs []string

	// Signals are those that this process gets. The first one is expected to end
	// Run's context too; one that comes half a second after it or later kills the command.
	Signals <-chan os.Signal

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Say tells progress and warnings, one line each. It may block: nothing waits
	// for it while the command runs.
	Say func(format string, args ...any)
}

// Held is a lease that a run had.
type Held struct {
	Resource string      `json:"resource"`
	Token    fence.Token `json:"token"`
}

// Result is how a run that started its command ended.
type Result struct {
	Held     []Held // in the order of the names' bytes
	ExitCode int    // the command's; 128 + the signal's number where one ended it
	Lost     error  // why a lease was lost; nil where all were held to the end
	LostOf   Held   // which
	Ended    bool   // the command was told to end because of that; false: it had ended by itself, or is only warned
	Killed   bool   // it, or what it started, had to be killed
}

// ErrLate says that the command was not started, because no time was left of the lease.
var ErrLate = errors.New("no time is left of the lease to run the command")

// releaseTimeout bounds the release after the command has ended.
const releaseTimeout = 5 * time.Second

// Run acquires the lease, runs the command and releases the lease. An error
// means that the command was not started. When ctx ends, the command gets
// SIGTERM, and the lease is kept for as long as it and its process group take to
// stop. Of several leases, one that is lost ends the command as the only one does.
//
// What the command leaves running in the background when it ends by itself is
// left alone, and has no lease any more.
func Run(ctx context.Context, cfg Config) (Result, error) {
	path, err := find(cfg.Command[0])
	if err != nil {
		return Result{}, err
	}
	tell := newTeller(cfg.Say)
	defer tell.close()
	cfg.Say = tell.sayf
	leases, err := acquire(ctx, cfg)
	if err != nil {
		return Result{}, err
	}
	defer release(ctx, cfg, leases)
	home, err := os.MkdirTemp("", "fencegate-run-")
	if err != nil {
		return Result{}, fmt.Errorf("folder for the command's settings: %w", err)
	}
	defer func() { _ = os.RemoveAll(home) }()
	var creds *provider
	if cfg.Environ, creds, err = provided(ctx, cfg, leases, home); err != nil {
		return Result{}, err
	}
	if creds != nil {
		defer creds.close()
	}
	w := newWatch(cfg, leases)
	if w.due() <= 0 {
		late := w.nearest().lease
		return Result{}, fmt.Errorf("%w on %q (token %d)", ErrLate, late.Resource, late.Token)
	}
	started, err := start(cfg, path)
	if err != nil {
		return Result{}, err
	}
	w.child = started
	defer started.unwatched()
	w.untilExit(ctx)
	w.confirm(ctx)
	return w.result(), nil
}

// release gives the leases back, the last one first.
func release(ctx context.Context, cfg Config, leases []client.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	for _, lease := range slices.Backward(leases) {
		if err := cfg.Client.Release(ctx, lease.Handle); err != nil && !lost(err) {
			cfg.Say("could not release %s; it ends by itself within %s: %v", lease.Resource, lease.TTL, err)
		}
	}
}

// provided asks for what the command finds in its environment, again where the gateway is
// away, for as long as the lease has time.
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

// Why is the cause of a loss, without the words that say that the lease is lost.
func Why(lost error) string {
	text := lost.Error()
	if text == leasing.ErrLost.Error() {
		return "the gateway does not say why"
	}
	return strings.TrimPrefix(text, leasing.ErrLost.Error()+": ")
}

// Refused says what becomes of the writes of a command whose lease is lost.
func Refused(lost error) string {
	if p, ok := errors.AsType[*client.Problem](lost); ok && p.Recorded != nil {
		return "the fence refuses its writes since then"
	}
	return "its writes are refused once another holds the resource"
}

// lost reports whether err says for certain that the lease is over.
func lost(err error) bool {
	var p *client.Problem
	return errors.As(err, &p) && p.Code == wire.CodeLeaseLost
}

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
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fencegate/fencegate/client"
	processes "github.com/fencegate/fencegate/internal/child"
)

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
	w, err := runCommand(ctx, cfg, leases)
	release(ctx, cfg, leases)
	if err != nil {
		return Result{}, err
	}
	return w.result(), nil
}

// runCommand runs the command, and confirms after its end that no lease was lost.
func runCommand(ctx context.Context, cfg Config, leases []client.Lease) (*watch, error) {
	if cfg.start == nil {
		cfg.start = startChild
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
	if cfg.Environ, creds, err = requestEnviron(ctx, cfg, leases, home); err != nil {
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

// requestEnviron requests the command's environment. It retries while
// the gateway is unavailable, for as long as the lease has time.
func requestEnviron(ctx context.Context, cfg Config, leases []client.Lease, home string) (environ []string, creds *provider, err error) {
	w := newWatch(cfg, leases)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		environ, creds, err = provide(ctx, cfg.Client, leases, needs{toolFolder{home, cfg.Environ, cfg.Say}, cfg.S3, cfg.PGURLs})
		if err == nil || !Retryable(err) || lost(err) || w.due() <= pause {
			return environ, creds, err
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, nil, err
		}
	}
}

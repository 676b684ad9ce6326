package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

// stat reads a process's state and parent from /proc.
func stat(pid int) (state byte, parent int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, ok := bytes.Cut(text, []byte(") ")) // a name may hold blanks
	if !ok {
		return 0, 0, errors.New("an unknown form of /proc/PID/stat")
	}
	_, err = fmt.Sscanf(string(rest), "%c %d", &state, &parent)
	return state, parent, err
}

// process is the last process that was started, and whether it is frozen. Its owner synchronizes the access.
type process struct {
	*child.Process

	frozen bool
}

// startLogged starts a program whose output is appended to a file.
func startLogged(spec child.Spec, file string) (*child.Process, error) {
	log, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	spec.Log = log
	return child.Start(spec)
}

func (p *process) freeze() error {
	err := child.Freeze(p.Pid())
	p.frozen = err == nil
	return err
}

func (p *process) thaw() error {
	if !p.frozen {
		return nil
	}
	p.frozen = false
	if err := p.Signal(syscall.SIGCONT); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// alive reports that the process has not ended.
func alive(pid int) bool {
	state, _, err := stat(pid)
	return err == nil && state != 'Z'
}

// children returns the running children of a process.
func children(pid int) []int {
	entries, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	var found []int
	for _, entry := range entries {
		n, err := strconv.Atoi(filepath.Base(entry))
		if err != nil {
			continue
		}
		if _, parent, err := stat(n); err == nil && parent == pid { // otherwise it has ended
			found = append(found, n)
		}
	}
	return found
}

// until retries until the condition holds or ctx ends.
func until(ctx context.Context, every time.Duration, what string, holds func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		}
	}
}

// freezeTree stops a process and its children. They get SIGKILL if this process ends before it thaws them.
func freezeTree(pid int) ([]int, error) {
	if err := child.Freeze(pid); err != nil { // first, so that it starts no more children
		return nil, err
	}
	frozen := children(pid)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, p := range frozen {
		_ = syscall.Kill(p, syscall.SIGSTOP) // it may have ended
		if err := child.Adopt(p, syscall.SIGKILL); err != nil {
			return frozen, err
		}
	}
	for _, p := range frozen {
		err := until(ctx, time.Millisecond, "freeze", func() error {
			if state, _, err := stat(p); err == nil && state != 'T' && state != 'Z' {
				return fmt.Errorf("process %d is %c", p, state)
			}
			return nil
		})
		if err != nil {
			return frozen, err
		}
	}
	return frozen, nil
}

// thawTree resumes what freezeTree stopped, the parent last: otherwise it would consider its children hung.
func thawTree(pid int, frozen []int) {
	for _, p := range frozen {
		_ = syscall.Kill(p, syscall.SIGCONT)
		child.Disown(p)
	}
	_ = syscall.Kill(pid, syscall.SIGCONT)
}

// killChildren kills a process's children and waits until they
// are gone. It stops the parent, so that it starts no more.
func killChildren(pid int) error {
	if err := child.Freeze(pid); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return err
	}
	all := children(pid)
	for _, p := range all {
		_ = syscall.Kill(p, syscall.SIGKILL) // it may have ended
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return until(ctx, 2*time.Millisecond, "kill", func() error {
		for _, p := range all {
			if state, _, err := stat(p); err == nil && state != 'Z' {
				return fmt.Errorf("process %d is %c", p, state)
			}
		}
		return nil
	})
}

// Spin keeps n additional processes busy, for d or until ctx ends.
func (c *Cluster) Spin(ctx context.Context, n int, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var spinning []*child.Process
	defer func() {
		for _, p := range spinning {
			p.Kill()
		}
	}()
	for range n {
		p, err := child.Start(child.Spec{
			Path: "/bin/sh", Args: []string{"-c", "while :; do :; done"}, DeathSignal: syscall.SIGKILL,
		})
		if err != nil {
			return err
		}
		spinning = append(spinning, p)
	}
	<-ctx.Done()
	return nil
}

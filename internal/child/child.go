//go:build unix

// Package child runs a server process that does not outlive this one.
//
// The guarantee: when this process ends, in any way (return, panic, Ctrl-C, kill -9), the child
// gets its death signal, then SIGKILL, and the folders passed to [RemoveAtDeath] are removed.
// On every Unix a small watchdog does this: a shell that waits for the end of a pipe which only
// this process holds open. On Linux the kernel's parent-death signal does so at once.
//
//	p, err := child.Start(child.Spec{Path: "/usr/bin/redis-server", Args: []string{"--port", "6390"}})
//	if err != nil {
//		return err
//	}
//	defer p.Stop(5 * time.Second)
//	select {
//	case <-p.Done(): // it ended by itself: p.Err() says how
//	case <-ready:
//	}
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Spec describes the process. The zero value of each optional field is fine.
type Spec struct {
	Path       string
	Args       []string            // without the program's name; never secrets: everyone can read them
	Env        []string            // nil: this process's
	Dir        string              // working folder; empty: this process's
	Log        *os.File            // its output; nil: discarded. Never a pipe or terminal of ours.
	In, Out    *os.File            // its standard input and, instead of Log, its standard output; nil: none
	Credential *syscall.Credential // nil: this process's user
	StopSignal syscall.Signal      // sent by Stop; 0: SIGTERM
	// DeathSignal is sent when this process has died; 0: StopSignal.
	DeathSignal syscall.Signal
}

// Process is a running child. Its methods are safe for concurrent use.
type Process struct {
	pid  int
	stop syscall.Signal
	done chan struct{}
	err  error // valid after done
}

// Start runs the process and its watchdog.
func Start(s Spec) (*Process, error) {
	if s.StopSignal == 0 {
		s.StopSignal = syscall.SIGTERM
	}
	if s.DeathSignal == 0 {
		s.DeathSignal = s.StopSignal
	}
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Env, cmd.Dir = s.Env, s.Dir
	if s.Log != nil {
		cmd.Stdout, cmd.Stderr = s.Log, s.Log
	}
	if s.In != nil {
		cmd.Stdin = s.In
	}
	if s.Out != nil {
		cmd.Stdout = s.Out
	}
	// The child gets its own process group. A terminal's Ctrl-C then
	// reaches only this process, which stops the child in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.Credential, Setpgid: true}
	dieWithParent(cmd.SysProcAttr, s.DeathSignal)

	p := &Process{stop: s.StopSignal, done: make(chan struct{})}
	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	if err := guard.add(p.pid, s.DeathSignal); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// run starts and waits on one operating system thread that it keeps: the
// parent-death signal is sent when the thread that forked ends, not the process.
func (p *Process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	if err == nil {
		p.pid = cmd.Process.Pid
	}
	started <- err
	if err != nil {
		return
	}
	p.err = cmd.Wait()
	guard.remove(p.pid)
	close(p.done)
}

// Pid is the process's id; it stays the same after its end.
func (p *Process) Pid() int { return p.pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended; nil while it runs and after exit code 0.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Signal sends sig. After the process's end it returns [os.ErrProcessDone].
func (p *Process) Signal(sig syscall.Signal) error {
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
	}
	return signal(p.pid, sig)
}

func signal(pid int, sig syscall.Signal) error {
	err := syscall.Kill(pid, sig)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// Stop sends the stop signal, kills the process if it takes longer than patience, and returns when it is gone. It may
// be called more than once.
func (p *Process) Stop(patience time.Duration) {
	_ = p.Signal(p.stop) // if it is gone, the wait below returns at once
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		_ = p.Signal(syscall.SIGKILL)
		<-p.done
	}
}

// Kill ends the process as kill -9 does and returns when it is gone.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL)
	<-p.done
}

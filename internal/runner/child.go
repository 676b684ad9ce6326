package runner

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	processes "github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/terminal"
)

// child is the command's process. If it has its own process group, signals go to the whole group, so that its
// descendants end with it.
type child struct {
	cmd    *exec.Cmd
	group  bool
	exited chan int // receives the exit code once
}

func startChild(cfg Config, path string) (process, error) {
	cmd := exec.Command(path, cfg.Command[1:]...)
	cmd.Args[0] = cfg.Command[0]
	cmd.Env = cfg.Environ
	cmd.Stdin, cmd.Stdout, cmd.Stderr = cfg.Stdin, cfg.Stdout, cfg.Stderr
	// On a terminal the command stays in our group, so that it may read from the terminal and receives Ctrl-C.
	c := &child{cmd: cmd, group: !terminal.Is(cfg.Stdin), exited: make(chan int, 1)}
	cmd.SysProcAttr = attributes(c.group)

	unguarded := processes.Prepare()
	started := make(chan error, 1)
	go func() {
		// The parent-death signal is bound to the thread that starts the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		begin := cmd.Start
		if cfg.Shared != nil && !c.group {
			begin = func() error { return cfg.Shared.Start(cmd) }
		}
		err := begin()
		started <- err
		if err == nil {
			c.exited <- ExitCode(cmd.Wait())
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Command[0], err)
	}
	// The parent-death signal reaches only the command; the watchdog signals its process group.
	if unguarded = cmp.Or(unguarded, processes.Adopt(c.guarded(), syscall.SIGTERM)); unguarded != nil {
		cfg.Say("no watchdog for the command, which may go on if this process is killed: %v", unguarded)
	}
	return c, nil
}

// guarded is the pid for the watchdog: the command, or its process group if it has one.
func (c *child) guarded() int {
	if c.group {
		return -c.cmd.Process.Pid
	}
	return c.cmd.Process.Pid
}

// unwatched is for a command that has ended by itself: its remaining processes are left alone.
func (c *child) unwatched() { processes.Disown(c.guarded()) }

func (c *child) done() <-chan int { return c.exited }

// ended reports whether the command and all of its process group have ended, before the exit code is known. It must not
// wait for the process, because that would lose the exit code.
func (c *child) ended() bool {
	pid := c.cmd.Process.Pid
	if !isZombie(pid) && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	return !c.group || errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH) || onlyZombies(pid)
}

// groupGone reports whether nothing remains of an ended command's process group.
func (c *child) groupGone() bool {
	if !c.group {
		return true
	}
	// As the first process of a container we inherit the command's orphans.
	for {
		if pid, _ := syscall.Wait4(-c.cmd.Process.Pid, nil, syscall.WNOHANG, nil); pid <= 0 {
			break
		}
	}
	return errors.Is(syscall.Kill(-c.cmd.Process.Pid, 0), syscall.ESRCH) || onlyZombies(c.cmd.Process.Pid)
}

// signal sends s to the command; a command that has ended is no error. A stopped command handles TERM only after it
// continues, so CONT is sent, too.
func (c *child) signal(s syscall.Signal) error {
	send := func(s syscall.Signal) error {
		if c.group {
			return syscall.Kill(-c.cmd.Process.Pid, s)
		}
		return c.cmd.Process.Signal(s)
	}
	err := send(s)
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if s == syscall.SIGTERM {
		_ = send(syscall.SIGCONT)
	}
	return err
}

const signalledBase = 128 // shells report 128 + the signal's number

// ExitCode returns what a shell would report for a process whose Wait returned err.
func ExitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return signalledBase + int(status.Signal())
		}
		return exit.ExitCode()
	}
	return 1 // its output could not be copied
}

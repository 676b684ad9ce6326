package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
)

// process is a program that is started again and again, with its own folder and wall clock.
type process struct {
	Name    string
	LogFile string

	spec    child.Spec // without its files
	clock   *clockshim.Clock
	answers func(context.Context) error // of a server that somebody has to start again

	mu       sync.Mutex
	proc     *child.Process // the last one; nil before the first
	expected *child.Process // one whose end is no surprise
	endings  []string       // the other ends
	starts   int
}

// prepare makes the process's folder and clock.
func (c *Cluster) prepare(p *process, name string, shim *clockshim.Clock, spec child.Spec) (err error) {
	spec.Dir, spec.DeathSignal = filepath.Join(c.dir, name), syscall.SIGKILL // a frozen process handles no other signal
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		return err
	}
	if p.clock, err = shim.In(filepath.Join(spec.Dir, "clock")); err != nil {
		return err
	}
	if spec.Env == nil {
		spec.Env = os.Environ()
	}
	spec.Env = append(spec.Env, p.clock.Env()...)
	p.Name, p.LogFile, p.spec = name, filepath.Join(spec.Dir, "log"), spec
	c.stack.AtClose(func() error { return errors.Join(p.Kill(), p.clock.Close()) })
	return nil
}

// ownClock is for programs made by [Build], which need no shim.
var ownClock = new(clockshim.Clock)

// start starts the program. Its output is appended to the log, except what goes to out.
func (p *process) start(in, out *os.File) (*child.Process, error) {
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	spec := p.spec
	spec.Log, spec.In, spec.Out = log, in, out
	p.mu.Lock()
	defer p.mu.Unlock()
	proc, err := child.Start(spec)
	if err == nil {
		p.proc, p.starts = proc, p.starts+1
	}
	return proc, err
}

// restart kills the server if it runs, calls between, starts it, and returns when it answers.
func (p *process) restart(ctx context.Context, between func() error) error {
	if err := p.Kill(); err != nil {
		return err
	}
	if err := between(); err != nil {
		return err
	}
	proc, err := p.start(nil, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := proc.Ready(ctx, p.answers); err != nil {
		return fmt.Errorf("%s does not answer: %w%s", p.Name, err, lastLines(p.LogFile))
	}
	return nil
}

func nothing() error { return nil }

func (p *process) last() *child.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc
}

// expect returns the last process, whose end is no surprise from now on.
func (p *process) expect() *child.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteEnd()
	p.expected = p.proc
	return p.proc
}

// noteEnd notes that the last process has ended by itself, once.
func (p *process) noteEnd() {
	if p.proc == nil || p.proc == p.expected {
		return
	}
	select {
	case <-p.proc.Done():
		p.endings = append(p.endings, fmt.Sprintf("%s (process %d) ended by itself: %v", p.Name, p.proc.Pid(), p.proc.Err()))
		p.expected = p.proc
	default:
	}
}

// takeEndings returns the ends by itself since the last call.
func (p *process) takeEndings() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteEnd()
	endings := p.endings
	p.endings = nil
	return endings
}

// ID is the process's name.
func (p *process) ID() string { return p.Name }

// Pid is the process's id, of the last one if none runs.
func (p *process) Pid() int { return p.last().Pid() }

// Starts returns how often the process was started.
func (p *process) Starts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

// Alive reports that the process has not ended.
func (p *process) Alive() bool { return p.last().Signal(0) == nil }

// Freeze stops the process (SIGSTOP). Programs that it has started go on. A signal to its group could stop one that has
// not become its program yet, for which the process waits in vfork(2): neither would ever be stopped.
func (p *process) Freeze() error {
	proc := p.last()
	if err := proc.Signal(0); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return child.Freeze(proc.Pid())
}

// Thaw resumes it.
func (p *process) Thaw() error { return unlessEnded(p.last().Signal(syscall.SIGCONT)) }

// Kill ends the process like kill -9, and returns when it is gone.
func (p *process) Kill() error {
	if proc := p.expect(); proc != nil {
		proc.Kill()
	}
	return nil
}

func unlessEnded(err error) error {
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// SetClock sets the offset of the process's wall clock.
func (p *process) SetClock(d time.Duration) error { return p.clock.Set(d) }

// heal thaws the process, corrects its clock, and starts a server that is down.
func (p *process) heal(ctx context.Context) error {
	err := errors.Join(p.clock.Set(0), p.Thaw())
	if p.answers != nil && !p.Alive() {
		err = errors.Join(err, p.restart(ctx, nothing))
	}
	return err
}

// freezeTree stops a process and then its children, which have process groups of their own, and returns these when they
// stand still. They get SIGKILL if this process ends before they are disowned.
func freezeTree(pid int) (children []int, err error) {
	if err := child.Freeze(pid); err != nil { // it starts no more
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = stack.Until(ctx, "the children stand still", func(context.Context) error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)) // all of them once they stand still
		for _, p := range children {
			child.Disown(p)
		}
		children = nil
		for word := range strings.FieldsSeq(string(text)) {
			p, _ := strconv.Atoi(word) // the kernel wrote it
			state := stateOf(p)
			if state == ended {
				continue
			}
			children = append(children, p)
			err = errors.Join(err, child.Adopt(p, syscall.SIGKILL))
			if state != 'T' {
				err = errors.Join(err, syscall.Kill(p, syscall.SIGSTOP), fmt.Errorf("process %d runs", p))
			}
		}
		return err
	})
	return children, err
}

const ended = byte('Z')

// stateOf is the state of a process in /proc: 'T' if it is stopped.
func stateOf(pid int) byte {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have ended
	_, rest, ok := strings.Cut(string(text), ") ")            // a name may hold blanks
	if !ok {
		return ended
	}
	return rest[0]
}

// Spin keeps n additional processes busy, for d or until ctx ends.
func (c *Cluster) Spin(ctx context.Context, n int, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for range n {
		p, err := child.Start(child.Spec{Path: "/bin/sh", Args: []string{"-c", "while :; do :; done"}, DeathSignal: syscall.SIGKILL})
		if err != nil {
			return err
		}
		defer p.Kill()
	}
	<-ctx.Done()
	return nil
}

package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

// process is a worker's process, as the story sees it: it takes commands on its standard input and reports events on
// its standard output.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	events chan Event
}

func startWorker(cfg Config, name string) (*process, error) {
	args := append(append([]string{}, cfg.Worker[1:]...), name)
	cmd := exec.Command(cfg.Worker[0], args...)
	cmd.Env = cfg.Environ
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C reaches the demo, which ends the workers
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start worker %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, stdin: stdin, events: make(chan Event)}
	go p.read(stdout)
	// A frozen worker can't notice that the demo is gone.
	if err := child.Adopt(p.pid(), syscall.SIGKILL); err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

// read passes on the worker's events until its output ends, after end was called.
func (p *process) read(stdout io.Reader) {
	defer close(p.events)
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			e = Event{Name: "garbled", Message: err.Error()}
		}
		p.events <- e
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// command writes one line. If the worker is gone, the next await fails.
func (p *process) command(line string) { _, _ = io.WriteString(p.stdin, line+"\n") }

// eventTimeout bounds a step that should take milliseconds.
const eventTimeout = 30 * time.Second

func (p *process) await(ctx context.Context, name string) (Event, error) {
	timeout := time.NewTimer(eventTimeout)
	defer timeout.Stop()
	select {
	case e, open := <-p.events:
		switch {
		case !open:
			return Event{}, mismatch("worker %s ended while %q was expected of it", p.name, name)
		case e.Name != name:
			return Event{}, mismatch("worker %s reported %q %s where %q was expected", p.name, e.Name, e.Message, name)
		}
		return e, nil
	case <-timeout.C:
		return Event{}, mismatch("worker %s did not report %q within %s", p.name, name, eventTimeout)
	case <-ctx.Done():
		return Event{}, context.Cause(ctx)
	}
}

// freeze stops the process and returns when the kernel says that it is stopped.
func (p *process) freeze() error {
	err := child.Freeze(p.pid())
	if errors.Is(err, os.ErrProcessDone) {
		return mismatch("worker %s ended instead of stopping", p.name)
	}
	return err
}

func (p *process) thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// end stops the worker, frozen or not, and waits for it.
func (p *process) end() {
	_ = p.stdin.Close()
	_ = p.cmd.Process.Kill()
	for range p.events {
	}
	_ = p.cmd.Wait()
	child.Disown(p.pid())
}

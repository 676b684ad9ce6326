package scenario_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/child"
)

// order is a line on a program's standard input, after its settings.
type order struct {
	Do    string `json:"do"` // acquire, try, check, write or release
	Value string `json:"value,omitempty"`
}

// reply is a line on its standard output: an order's answer, or a message that something was sent to PostgreSQL.
type reply struct {
	Sent  bool          `json:"sent,omitempty"`
	Left  time.Duration `json:"left"`
	Error string        `json:"error,omitempty"`
	Code  string        `json:"code,omitempty"`
}

// program runs a client as a process, and returns its exit code.
func program(in io.Reader, out io.Writer) int {
	lines := json.NewDecoder(in)
	var s settings
	if err := lines.Decode(&s); err != nil {
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	tell := func(what reply) {
		mu.Lock()
		defer mu.Unlock()
		_ = json.NewEncoder(out).Encode(what)
	}
	c, err := connect(ctx, s)
	if err != nil {
		tell(reply{Error: err.Error()})
		return 1
	}
	defer c.close()
	c.sent = func() { tell(reply{Sent: true}) }
	for {
		var o order
		if err := lines.Decode(&o); err != nil {
			return 0
		}
		tell(answer(c, c.obey(ctx, o)))
	}
}

func (c *client) obey(ctx context.Context, o order) error {
	switch o.Do {
	case "acquire":
		return c.acquire(ctx)
	case "try":
		return c.try(ctx)
	case "check":
		return c.check(ctx)
	case "release":
		return c.release(ctx)
	case "write":
		return c.write(ctx, o.Value)
	}
	return fmt.Errorf("unknown order %q", o.Do)
}

func answer(c *client, err error) reply {
	if err == nil {
		return reply{Left: c.left()}
	}
	t := reply{Left: c.left(), Error: err.Error()}
	if code, ok := fence.CodeOf(err); ok {
		t.Code = code.SQLState
	}
	return t
}

// process is a running program.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan reply // closed with its output
}

func (w *world) process(nodes []string, writer string) *process {
	t := w.t
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	p := &process{t: t, cmd: exec.Command(self), lines: make(chan reply, 64)}
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = os.Stderr
	p.in, err = p.cmd.StdinPipe()
	must(t, err)
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	must(t, p.cmd.Start())
	must(t, child.Adopt(p.cmd.Process.Pid, syscall.SIGKILL))
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var line reply
			if json.Unmarshal(lines.Bytes(), &line) == nil {
				p.lines <- line
			}
		}
	}()
	t.Cleanup(func() {
		p.kill()
		for range p.lines { // lines that were not awaited
		}
		<-read
		_ = p.cmd.Wait() // it was killed
	})
	must(t, json.NewEncoder(p.in).Encode(w.settings(nodes, writer)))
	return p
}

// send gives an order.
func (p *process) send(o order) {
	p.t.Helper()
	must(p.t, json.NewEncoder(p.in).Encode(o))
}

// answer waits for the answer of an order.
func (p *process) answer() reply {
	p.t.Helper()
	for {
		if line := p.next(); !line.Sent {
			return line
		}
	}
}

// awaitSent waits until the program has sent something to PostgreSQL.
func (p *process) awaitSent() {
	p.t.Helper()
	if line := p.next(); !line.Sent {
		p.t.Fatalf("the program had an answer already: %+v", line)
	}
}

func (p *process) next() reply {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the program has ended")
		}
		return line
	case <-time.After(patience):
		p.t.Fatal("the program says nothing")
	}
	return reply{}
}

// do gives an order that must succeed.
func (p *process) do(o order) {
	p.t.Helper()
	p.send(o)
	if a := p.answer(); a.Error != "" {
		p.t.Fatalf("%+v: %s", o, a.Error)
	}
}

func (p *process) freeze() { must(p.t, child.Freeze(p.cmd.Process.Pid)) }
func (p *process) thaw()   { must(p.t, p.cmd.Process.Signal(syscall.SIGCONT)) }

func (p *process) kill() {
	child.Disown(p.cmd.Process.Pid)
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
}

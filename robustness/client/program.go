package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

// program is a process that exchanges lines with this one, and does not outlive it.
type program struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string   // lines of its standard output; closed at its end
	gone  chan struct{} // closed when it has ended

	mu   sync.Mutex
	errs []byte // the beginning of its standard error
}

// errEnded reports that the program ended, or closed its output.
var errEnded = errors.New("the program ended")

func startProgram(path string, args, environ []string) (*program, error) {
	p := &program{cmd: exec.Command(path, args...), lines: make(chan string, 64), gone: make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr = environ, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the client
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.in = in
	adopted := child.Adopt(p.cmd.Process.Pid, syscall.SIGKILL) // stopped, it would not notice the end of its input
	go func() {
		defer close(p.gone)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			select {
			case p.lines <- scan.Text():
			default: // more than are read
			}
		}
		close(p.lines)
		_ = p.cmd.Wait()
		child.Disown(p.cmd.Process.Pid)
	}()
	if adopted != nil {
		p.kill()
	}
	return p, adopted
}

// Write keeps the beginning of the standard error.
func (p *program) Write(part []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errs = append(p.errs, part[:min(len(part), 4<<10-len(p.errs))]...)
	return len(part), nil
}

// said returns its standard error.
func (p *program) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(strings.Fields(string(p.errs)), " ")
}

// line returns the next line of output.
func (p *program) line(ctx context.Context) (string, error) {
	select {
	case line, ok := <-p.lines:
		if !ok {
			return "", errEnded
		}
		return line, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// ended waits for the end until ctx ends.
func (p *program) ended(ctx context.Context) bool {
	select {
	case <-p.gone:
		return true
	case <-ctx.Done():
		return false
	}
}

// kill kills the program, and waits for its end and that of its children, which may be stopped.
func (p *program) kill() {
	_ = p.in.Close()
	_ = p.cmd.Process.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	p.ended(ctx)
}

// code is the exit code; -1 while it runs, and if a signal ended it.
func (p *program) code() int {
	select {
	case <-p.gone:
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

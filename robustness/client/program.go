package client

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// program is a process that exchanges lines with this one. It does not outlive this process.
type program struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string   // lines of its standard output; closed at its end
	gone  chan struct{} // closed when it has ended
	err   firstWords    // its standard error
	once  sync.Once
}

// errEnded reports that the program ended, or closed its output.
var errEnded = errors.New("the program ended")

func startProgram(path string, args, environ []string) (*program, error) {
	p := &program{cmd: exec.Command(path, args...), lines: make(chan string, 64), gone: make(chan struct{})}
	p.cmd.Env = environ
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p.cmd.Stderr = &p.err
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
	}()
	return p, nil
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

func (p *program) write(text string) error {
	_, err := io.WriteString(p.in, text)
	return err
}

func (p *program) hangUp() { p.once.Do(func() { _ = p.in.Close() }) }

func (p *program) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// ended waits for the end until ctx ends.
func (p *program) ended(ctx context.Context) bool {
	select {
	case <-p.gone:
		return true
	case <-ctx.Done():
		return false
	}
}

// killTimeout bounds the wait for the program's children, which may be stopped.
const killTimeout = 5 * time.Second

// kill kills the program, and waits for its end.
func (p *program) kill() {
	p.hangUp()
	_ = p.cmd.Process.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
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

// said returns its standard error.
func (p *program) said() string { return strings.Join(strings.Fields(p.err.text()), " ") }

// firstWords keeps the beginning of the text written to it.
type firstWords struct {
	limit int // bytes; 0: maxError

	mu   sync.Mutex
	kept []byte
}

func (b *firstWords) Write(part []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = append(b.kept, part[:min(len(part), cmp.Or(b.limit, maxError)-len(b.kept))]...)
	return len(part), nil
}

func (b *firstWords) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.kept)
}

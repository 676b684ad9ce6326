package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// program is a process that exchanges lines with this one, and does not outlive it.
type program struct {
	*exec.Cmd

	in    io.WriteCloser
	lines chan string   // lines of its standard output; closed at its end
	gone  chan struct{} // closed when it has ended
	errs  bytes.Buffer
}

// errEnded reports that the program ended, or closed its output.
var errEnded = errors.New("the program ended")

func startProgram(path string, args, environ []string) (*program, error) {
	p := &program{Cmd: exec.Command(path, args...), lines: make(chan string, 64), gone: make(chan struct{})}
	p.Env, p.Stderr = environ, &p.errs
	// Ctrl-C is for the client. A program that is stopped would not notice the end of its input.
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var err error
	if p.in, err = p.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.gone)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			select {
			case p.lines <- scan.Text():
			default: // more than are read
			}
		}
		close(p.lines)
		_ = p.Wait()
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

// ended waits for the end until ctx ends. It returns the exit code, -1 if there is none, and the standard error.
func (p *program) ended(ctx context.Context) (code int, said string) {
	select {
	case <-p.gone:
	case <-ctx.Done():
	}
	if !p.over() {
		return -1, ""
	}
	return p.ProcessState.ExitCode(), strings.Join(strings.Fields(p.errs.String()), " ")
}

func (p *program) over() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// kill kills the program, and is then ended. It waits a while for the program's children, which may be stopped.
func (p *program) kill() (code int, said string) {
	_ = p.in.Close()
	_ = p.Process.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return p.ended(ctx)
}

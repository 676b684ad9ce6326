//go:build unix

package redisserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

// process is a node that runs as a child of this process.
type process struct {
	cfg    Config
	ownDir bool
	port   bool // the port may be chosen
	proc   *child.Process
}

var _ Control = (*process)(nil)

func newProcess(cfg Config) (*process, error) {
	if cfg.Binary == "" {
		found, err := Find()
		if err != nil {
			return nil, err
		}
		cfg.Binary = found
	}
	if cfg.Patience == 0 {
		cfg.Patience = 15 * time.Second
	}
	p := &process{cfg: cfg, port: cfg.Addr == "", ownDir: cfg.Dir == ""}
	if p.ownDir {
		dir, err := os.MkdirTemp("", "fencegate-redis-")
		if err != nil {
			return nil, fmt.Errorf("redis: data folder: %w", err)
		}
		p.cfg.Dir = dir
		return p, child.RemoveAtDeath(dir)
	}
	return p, nil
}

// attempts bounds how often another free port is tried: another process may take a port between finding and binding it.
const attempts = 5

func (p *process) Start(ctx context.Context) error {
	if p.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Patience)
	defer cancel()
	for n := 1; ; n++ {
		if p.port {
			addr, err := FreeAddr()
			if err != nil {
				return err
			}
			p.cfg.Addr = addr
		}
		err := p.startOnce(ctx)
		if err == nil {
			p.port = false // from now on the address is fixed
			return nil
		}
		if !p.port || n == attempts || ctx.Err() != nil {
			return err
		}
	}
}

func (p *process) startOnce(ctx context.Context) error {
	host, port, err := net.SplitHostPort(p.cfg.Addr)
	if err != nil {
		return fmt.Errorf("redis: address %q: %w", p.cfg.Addr, err)
	}
	args := []string{"--port", port, "--bind", host, "--dir", p.cfg.Dir, "--daemonize", "no", "--save", "", "--appendonly", "no"}
	if p.cfg.AppendOnly != None {
		args = append(args, "--appendonly", "yes", "--appendfsync", string(p.cfg.AppendOnly))
	}
	log, err := os.Create(filepath.Join(p.cfg.Dir, "redis.log"))
	if err != nil {
		return fmt.Errorf("redis: log: %w", err)
	}
	defer log.Close()
	p.proc, err = child.Start(child.Spec{
		Path: p.cfg.Binary, Args: append(args, p.cfg.Args...), Env: append(os.Environ(), p.cfg.Env...), Dir: p.cfg.Dir, Log: log,
		DeathSignal: syscall.SIGKILL, // a frozen node handles no other signal
	})
	if err != nil {
		return err
	}
	if err := p.proc.Ready(ctx, p.answers); err != nil {
		p.proc.Kill()
		return fmt.Errorf("redis %s on %s did not start: %w%s", p.cfg.Binary, p.cfg.Addr, err, lastLines(log.Name()))
	}
	return nil
}

// answers checks whether the node answers, as the process that was started.
func (p *process) answers(ctx context.Context) error {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", p.cfg.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("INFO server\r\nPING\r\n")); err != nil {
		return err
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "process_id:") && line != fmt.Sprintf("process_id:%d", p.proc.Pid()):
			return fmt.Errorf("another server (%s) has the port", line)
		case line == "+PONG":
			return nil
		case strings.HasPrefix(line, "-"): // such as LOADING
			return errors.New(line[1:])
		}
	}
	return errors.Join(lines.Err(), errors.New("no answer to PING"))
}

func (p *process) running() bool {
	if p.proc == nil {
		return false
	}
	select {
	case <-p.proc.Done():
		return false
	default:
		return true
	}
}

func (p *process) Kill() error {
	if p.proc != nil {
		p.proc.Kill()
	}
	return nil
}

func (p *process) Freeze() error {
	return p.signal("freeze", func() error { return child.Freeze(p.proc.Pid()) })
}

func (p *process) Thaw() error {
	return p.signal("thaw", func() error { return p.proc.Signal(syscall.SIGCONT) })
}

func (p *process) signal(what string, send func() error) error {
	err := errors.New("not started")
	if p.proc != nil {
		err = send()
	}
	if err != nil {
		return fmt.Errorf("redis: %s: %w", what, err)
	}
	return nil
}

func (p *process) Remove() error {
	if err := p.Kill(); err != nil {
		return err
	}
	if !p.ownDir {
		return nil
	}
	child.Removed(p.cfg.Dir)
	return os.RemoveAll(p.cfg.Dir)
}

func (p *process) Pid() int {
	if p.proc == nil {
		return 0
	}
	return p.proc.Pid()
}

// FreeAddr returns a loopback address whose port was free a moment ago.
func FreeAddr() (string, error) {
	port, err := child.FreePort()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}

// lastLines quotes the end of a log for an error.
func lastLines(file string) string {
	text, err := os.ReadFile(file)
	if err != nil || len(text) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "; its log ends: " + strings.Join(lines[max(0, len(lines)-3):], " | ")
}

//go:build unix

// Package redisserver runs real redis-server or valkey-server processes on loopback, for tests that kill, freeze and
// restart nodes, and for demonstrations on real nodes.
//
// The guarantee: a server that [Start] returned answers on Addr, is the process that this package started (never
// another one that happened to take the port), keeps its address and its data folder over [Server.Restart], and does
// not outlive this process.
//
//	srv, err := redisserver.Start(ctx, redisserver.Config{AppendOnly: redisserver.Always})
//	if err != nil {
//		return err
//	}
//	defer srv.Close()
//	srv.Kill()         // like kill -9: what was not on disk is lost
//	srv.Restart(ctx)   // the same address, with the data on disk
//	srv.Freeze()       // answers nothing, keeps its connections
//	srv.Thaw()
package redisserver

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// Persistence says when writes reach the disk.
type Persistence string

// The choices that Redis offers. None keeps nothing over a restart.
const (
	None     Persistence = ""
	EverySec Persistence = "everysec"
	Always   Persistence = "always"
)

// Config configures a server. The zero value is a server without persistence on a free port.
type Config struct {
	Binary     string        // default: the first of redis-server, valkey-server on the machine
	Dir        string        // data folder; default: a temporary one, removed by Close
	Addr       string        // host:port on loopback; default: 127.0.0.1 and a free port
	AppendOnly Persistence   // default None
	Args       []string      // further options, for example "--maxmemory", "10mb"; never secrets
	Env        []string      // besides this process's environment, as "NAME=value"
	Patience   time.Duration // for starting; default 15s
}

// Server is one node. Its methods are safe for concurrent use.
type Server struct {
	Addr string // host:port, the same for the server's life

	mu  sync.Mutex
	ctl Control
}

// Control runs a node, as our own process or otherwise, for
// example in a container. Its methods are called one at a time.
type Control interface {
	Start(ctx context.Context) error // returns when the node answers; no effect on a running node
	Kill() error                     // like kill -9; returns when the node is gone
	Freeze() error                   // like SIGSTOP
	Thaw() error
	Remove() error // ends it and removes its data
	Pid() int      // 0 if the node is no process of this machine
}

// ErrNotFound reports that the machine has neither redis-server nor valkey-server.
var ErrNotFound = errors.New("no redis-server or valkey-server on this machine (looked in PATH, /usr/bin, /usr/local/bin, /opt/homebrew/bin)")

// Find returns the path of a server binary, or [ErrNotFound].
func Find() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
		for _, dir := range []string{"/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"} {
			p := filepath.Join(dir, name)
			if info, err := os.Stat(p); err == nil && info.Mode()&0o111 != 0 {
				return p, nil
			}
		}
	}
	return "", ErrNotFound
}

// Start runs a server and returns when it answers.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	p, err := newProcess(cfg)
	if err != nil {
		return nil, err
	}
	srv := Under(p.cfg.Addr, p)
	if err := p.Start(ctx); err != nil {
		return nil, errors.Join(err, p.Remove())
	}
	srv.Addr = p.cfg.Addr // the port is chosen at the start
	return srv, nil
}

// Under returns a Server for a node that ctl runs on addr.
func Under(addr string, ctl Control) *Server { return &Server{Addr: addr, ctl: ctl} }

// Pid is the process's id: of the last one after Kill, 0 in a container.
func (s *Server) Pid() int { return do(s, func() int { return s.ctl.Pid() }) }

// Kill ends the node as kill -9 does and returns when it is gone.
func (s *Server) Kill() error { return do(s, s.ctl.Kill) }

// Freeze stops the node (SIGSTOP): connections stay open and nothing is answered until [Server.Thaw].
func (s *Server) Freeze() error { return do(s, s.ctl.Freeze) }

// Thaw resumes a frozen node.
func (s *Server) Thaw() error { return do(s, s.ctl.Thaw) }

// Restart kills the node if it runs, and starts it on the same address and data folder.
func (s *Server) Restart(ctx context.Context) error {
	return do(s, func() error {
		if err := s.ctl.Kill(); err != nil {
			return err
		}
		return s.ctl.Start(ctx)
	})
}

// Close ends the node and removes its temporary data folder. It may be called more than once.
func (s *Server) Close() error { return do(s, s.ctl.Remove) }

func do[T any](s *Server, f func() T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

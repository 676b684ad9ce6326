//go:build unix

// Package zkserver runs real ZooKeeper processes on loopback, alone or as an ensemble of three or five, for tests and
// benchmarks. It needs Java and the jars of Debian's package.
//
// The guarantee: an ensemble that [Start] returned answers, and its servers do not outlive this process.
package zkserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

// jars are what a server needs; Debian's manifest names the others.
const jars = "/usr/share/java/zookeeper.jar"

// ErrNotFound reports that the machine has no ZooKeeper.
var ErrNotFound = errors.New("no ZooKeeper on this machine (java and " + jars + "): scripts/need zookeeper installs it")

// Ensemble is a running ensemble.
type Ensemble struct {
	Servers []*Server
	dir     string
	env     func(i int) []string
}

// Server is one server.
type Server struct {
	Addr string // host:port for clients, the same for the server's life

	java, config, log string
	env               []string
	proc              *child.Process
}

// Start runs n servers, and returns when each serves.
func Start(ctx context.Context, n int) (*Ensemble, error) {
	return StartWith(ctx, n, func(int) []string { return nil })
}

// StartWith is Start with additional variables for the server at each index.
func StartWith(ctx context.Context, n int, env func(i int) []string) (*Ensemble, error) {
	java, err := exec.LookPath("java")
	if _, missing := os.Stat(jars); err != nil || missing != nil {
		return nil, ErrNotFound
	}
	dir, err := os.MkdirTemp("", "fencegate-zookeeper-")
	if err != nil {
		return nil, err
	}
	if err := child.RemoveAtDeath(dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	e := &Ensemble{dir: dir, env: env}
	if err := e.start(ctx, java, n); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Ensemble) start(ctx context.Context, java string, n int) error {
	ports := make([]int, 3*n)
	for i := range ports {
		var err error
		if ports[i], err = child.FreePort(); err != nil {
			return err
		}
	}
	var quorum strings.Builder
	for i := range n {
		if n > 1 {
			fmt.Fprintf(&quorum, "server.%d=127.0.0.1:%d:%d\n", i+1, ports[3*i+1], ports[3*i+2])
		}
	}
	for i := range n {
		data := filepath.Join(e.dir, fmt.Sprint(i+1))
		s := &Server{Addr: fmt.Sprintf("127.0.0.1:%d", ports[3*i]), java: java, config: data + ".cfg", log: data + ".log", env: e.env(i)}
		config := fmt.Sprintf("dataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\ntickTime=500\ninitLimit=40\nsyncLimit=10\nmaxClientCnxns=0\n"+
			"minSessionTimeout=1000\nmaxSessionTimeout=300000\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n%s", data, ports[3*i], quorum.String())
		if err := errors.Join(os.Mkdir(data, 0o755), os.WriteFile(filepath.Join(data, "myid"), fmt.Appendln(nil, i+1), 0o600),
			os.WriteFile(s.config, []byte(config), 0o600)); err != nil {
			return err
		}
		e.Servers = append(e.Servers, s)
		if err := s.Start(); err != nil {
			return err
		}
	}
	for _, s := range e.Servers {
		if err := s.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Addrs are the addresses for clients.
func (e *Ensemble) Addrs() []string {
	addrs := make([]string, len(e.Servers))
	for i, s := range e.Servers {
		addrs[i] = s.Addr
	}
	return addrs
}

// Close ends the servers and removes their data.
func (e *Ensemble) Close() error {
	for _, s := range e.Servers {
		s.Kill()
	}
	child.Removed(e.dir)
	return os.RemoveAll(e.dir)
}

// Start runs the server again on the data that it has.
func (s *Server) Start() error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.proc, err = child.Start(child.Spec{
		Path: s.java,
		Args: []string{"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars, "org.apache.zookeeper.server.quorum.QuorumPeerMain", s.config},
		Env:  append(os.Environ(), s.env...), Log: log, DeathSignal: syscall.SIGKILL,
	})
	return err
}

// Ready waits until the server is ready, alone or with a leader.
func (s *Server) Ready(ctx context.Context) error {
	err := s.proc.Ready(ctx, s.serves)
	if err != nil {
		log, _ := os.ReadFile(s.log)
		text := strings.ReplaceAll(string(bytes.TrimSpace(log)), "\n", " | ")
		return fmt.Errorf("ZooKeeper on %s: %w; its log: %s", s.Addr, err, text)
	}
	return nil
}

func (s *Server) serves(ctx context.Context) error {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", s.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && !bytes.Contains(answer, []byte("Mode: ")) {
		err = fmt.Errorf("it says %q", answer)
	}
	return err
}

// Kill ends the server as kill -9 does.
func (s *Server) Kill() {
	if s.proc != nil {
		s.proc.Kill()
	}
}

// Freeze stops the server (SIGSTOP).
func (s *Server) Freeze() error { return child.Freeze(s.proc.Pid()) }

// Thaw resumes the server.
func (s *Server) Thaw() error { return s.proc.Signal(syscall.SIGCONT) }

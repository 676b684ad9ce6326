//go:build unix

// Package etcdserver runs real etcd processes on loopback, as a cluster of 1, 3, 5 …, for tests and benchmarks.
//
// The guarantee: a cluster that [Start] returned has a leader, and its members do not outlive this process.
//
//	cluster, err := etcdserver.Start(ctx, 3, "")
//	if err != nil {
//		return err
//	}
//	defer cluster.Close()
//	cluster.Members[0].Freeze() // answers nothing, keeps its connections
package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fencegate/fencegate/internal/child"
)

// ErrNotFound reports that the machine has no etcd.
var ErrNotFound = errors.New("no etcd on this machine: scripts/need etcd installs it")

// Cluster is a running cluster.
type Cluster struct {
	Members []*Member
	dir     string
}

// Member is one server.
type Member struct {
	Addr string // host:port for clients, the same for the member's life

	args []string
	log  string
	proc *child.Process
}

// Start runs n members, and returns when the cluster has a leader. snapshot is a file of `etcdctl snapshot save` to
// restore; "": none. A snapshot needs n = 1.
func Start(ctx context.Context, n int, snapshot string) (*Cluster, error) {
	path, err := exec.LookPath("etcd")
	if err != nil {
		return nil, ErrNotFound
	}
	dir, err := os.MkdirTemp("", "fencegate-etcd-")
	if err != nil {
		return nil, err
	}
	if err := child.RemoveAtDeath(dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c := &Cluster{dir: dir}
	if err := c.start(ctx, path, n, snapshot); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, path string, n int, snapshot string) error {
	peers, clients := make([]string, n), make([]string, n)
	var cluster []string
	for i := range n {
		for _, address := range []*string{&peers[i], &clients[i]} {
			port, err := child.FreePort()
			if err != nil {
				return err
			}
			*address = fmt.Sprintf("127.0.0.1:%d", port)
		}
		cluster = append(cluster, fmt.Sprintf("m%d=http://%s", i, peers[i]))
	}
	for i := range n {
		name, data := fmt.Sprintf("m%d", i), filepath.Join(c.dir, fmt.Sprintf("m%d", i))
		if snapshot != "" {
			out, err := exec.CommandContext(ctx, "etcdctl", "snapshot", "restore", snapshot, "--name", name, "--data-dir", data,
				"--initial-cluster", strings.Join(cluster, ","), "--initial-advertise-peer-urls", "http://"+peers[i]).CombinedOutput()
			if err != nil {
				return fmt.Errorf("etcdctl snapshot restore: %w: %s", err, out)
			}
		}
		m := &Member{Addr: clients[i], log: data + ".log", args: []string{
			path, "--name", name, "--data-dir", data, "--listen-client-urls", "http://" + clients[i], "--advertise-client-urls", "http://" + clients[i],
			"--listen-peer-urls", "http://" + peers[i], "--initial-advertise-peer-urls", "http://" + peers[i],
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
		}}
		c.Members = append(c.Members, m)
		if err := m.Start(); err != nil {
			return err
		}
	}
	for _, m := range c.Members {
		if err := m.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Endpoints are the addresses for clients.
func (c *Cluster) Endpoints() []string {
	addrs := make([]string, len(c.Members))
	for i, m := range c.Members {
		addrs[i] = m.Addr
	}
	return addrs
}

// Close ends the members and removes their data.
func (c *Cluster) Close() error {
	for _, m := range c.Members {
		m.Kill()
	}
	child.Removed(c.dir)
	return os.RemoveAll(c.dir)
}

// Start runs the member again on the data that it has.
func (m *Member) Start() error {
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	m.proc, err = child.Start(child.Spec{Path: m.args[0], Args: m.args[1:], Log: log, DeathSignal: syscall.SIGKILL})
	return err
}

// Ready waits until the member answers and knows a leader.
func (m *Member) Ready(ctx context.Context) error {
	if err := m.proc.Ready(ctx, m.healthy); err != nil {
		return fmt.Errorf("etcd on %s: %w; its log is %s", m.Addr, err, m.log)
	}
	return nil
}

func (m *Member) healthy(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Addr+"/health", nil)
	if err != nil {
		return err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// Kill ends the member as kill -9 does.
func (m *Member) Kill() {
	if m.proc != nil {
		m.proc.Kill()
	}
}

// Freeze stops the member (SIGSTOP).
func (m *Member) Freeze() error { return child.Freeze(m.proc.Pid()) }

// Thaw resumes the member.
func (m *Member) Thaw() error { return m.proc.Signal(syscall.SIGCONT) }

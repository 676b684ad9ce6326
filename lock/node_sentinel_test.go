//go:build unix

package lock_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// watchedNode is a node with a primary, a replica and a Sentinel, which are all real processes.
type watchedNode struct {
	node     lock.Node
	servers  map[string]*redisserver.Server // by address
	sentinel *redis.Client
}

func newWatchedNode(t *testing.T, args ...string) *watchedNode {
	t.Helper()
	primary := startBare(t, args...)
	host, port, err := net.SplitHostPort(primary.Addr)
	must(t, err)
	replica := startBare(t, append([]string{"--replicaof", host + " " + port}, args...)...)
	w := &watchedNode{servers: map[string]*redisserver.Server{primary.Addr: primary, replica.Addr: replica}}
	c := client(t, replica.Addr)
	eventually(t, 20*time.Second, "the replica has caught up", func() bool {
		return strings.Contains(c.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	up := client(t, primary.Addr)
	eventually(t, 20*time.Second, "the primary counts the replica", func() bool {
		info := up.Info(t.Context(), "replication").Val()
		return strings.Contains(info, "state=online") && !strings.Contains(info, "min_slaves_good_slaves:0")
	})
	addr := startSentinel(t, fmt.Sprintf(`sentinel monitor main %s %s 1
sentinel down-after-milliseconds main %d
sentinel failover-timeout main 4000
`, host, port, time.Hour.Milliseconds()))
	w.sentinel = client(t, addr)
	eventually(t, 20*time.Second, "the Sentinel knows the replica", func() bool {
		replicas, err := w.sentinel.Do(t.Context(), "SENTINEL", "replicas", "main").Slice()
		return err == nil && len(replicas) == 1
	})
	w.node = lock.Node{Name: "watched", Sentinels: []string{testenv.DeadAddr(t), addr}, MasterName: "main"}
	return w
}

// fail kills the primary and waits for its successor. Only during this the Sentinel considers a server down after one
// second of silence, because a server may be silent that long on a busy machine.
func (w *watchedNode) fail(t *testing.T, during func()) (failed string) {
	t.Helper()
	downAfter := func(d time.Duration) {
		must(t, w.sentinel.Do(t.Context(), "SENTINEL", "SET", "main", "down-after-milliseconds", d.Milliseconds()).Err())
	}
	failed = w.primary(t)
	must(t, w.servers[failed].Kill())
	downAfter(time.Second)
	during()
	w.moved(t, failed)
	downAfter(time.Hour)
	return failed
}

func startSentinel(t *testing.T, config string) (addr string) {
	t.Helper()
	binary, err := redisserver.Find()
	must(t, err)
	for range 5 { // between finding a port and binding it, another process may take it
		addr, err = redisserver.FreeAddr()
		must(t, err)
		_, port, err := net.SplitHostPort(addr)
		must(t, err)
		dir := t.TempDir()
		file := filepath.Join(dir, "sentinel.conf") // the Sentinel rewrites it
		must(t, os.WriteFile(file, []byte("port "+port+"\nbind 127.0.0.1\ndir "+dir+"\n"+config), 0o600))
		p, err := child.Start(child.Spec{Path: binary, Args: []string{file, "--sentinel"}, Dir: dir, DeathSignal: syscall.SIGKILL})
		must(t, err)
		t.Cleanup(p.Kill)
		if answers(t, addr, p) {
			return addr
		}
	}
	t.Fatal("no Sentinel gets a port")
	return ""
}

// answers waits until a server answers at the address, and reports whether it is the process; or until the process
// has ended.
func answers(t *testing.T, addr string, p *child.Process) bool {
	t.Helper()
	c := client(t, addr)
	its := false
	eventually(t, 20*time.Second, addr+" answers", func() bool {
		info, err := c.Info(t.Context(), "server").Result()
		its = strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", p.Pid()))
		select {
		case <-p.Done():
			return true
		default:
			return err == nil
		}
	})
	return its
}

// primary returns the Sentinel's current primary.
func (w *watchedNode) primary(t *testing.T) string {
	t.Helper()
	addr, err := w.sentinel.Do(t.Context(), "SENTINEL", "get-master-addr-by-name", "main").StringSlice()
	must(t, err)
	return net.JoinHostPort(addr[0], addr[1])
}

// moved waits until another server is the primary, also by its own account.
func (w *watchedNode) moved(t *testing.T, from string) string {
	t.Helper()
	now := from
	clients := make(map[string]*redis.Client)
	for addr := range w.servers {
		clients[addr] = client(t, addr)
	}
	eventually(t, 60*time.Second, "a failover", func() bool {
		now = w.primary(t)
		if now == from {
			return false
		}
		role, err := clients[now].Do(t.Context(), "ROLE").Slice()
		return err == nil && role[0] == "master"
	})
	return now
}

// refused tries until the node reports that it is not admitted. It grants nothing until then.
func refused(t *testing.T, l *lock.Locker) {
	t.Helper()
	eventually(t, 60*time.Second, "the node is found lost", func() bool {
		_, err := l.TryAcquire(t.Context(), "other")
		if err == nil {
			t.Fatal("granted after a failover")
		}
		return errors.Is(err, lock.ErrQuarantined)
	})
	if st := admin.Of(l).Status(t.Context())[0]; st.Admitted {
		t.Errorf("status %+v", st)
	}
}

// watchedTTL is the longest TTL, and the quarantine, where nodes are awaited after a failover.
const watchedTTL = 5 * time.Second

func watchedConfig(w *watchedNode) lock.Config {
	return lock.Config{
		Nodes: []lock.Node{w.node}, KeyPrefix: lock.Prefix(fmt.Sprintf("watched-%d", prefixes.Add(1))),
		NodeTimeout: patient, MaxTTL: watchedTTL, Epochs: &epochs{},
	}
}

// counted acquires a few times and returns the last token.
func counted(t *testing.T, l *lock.Locker) fence.Token {
	t.Helper()
	var last fence.Token
	for range 5 {
		lease := acquire(t, l, "r")
		if got := token(t, lease); got <= last {
			t.Fatalf("token %d after %d", got, last)
		} else {
			last = got
		}
		release(t, lease)
	}
	return last
}

func TestAFailoverCountsAsLossOfTheNode(t *testing.T) {
	t.Parallel()
	w := newWatchedNode(t)
	cfg := watchedConfig(w)
	l := started(t, cfg)
	last := counted(t, l)
	w.fail(t, func() {})
	refused(t, l)
	refused(t, locker(t, cfg)) // a Locker that never saw the node before
	asked := time.Now()
	must(t, admin.Of(l).Admit(t.Context(), "watched"))
	if took := time.Since(asked); took < cfg.MaxTTL {
		t.Errorf("admitted again after %v; the quarantine is %v", took, cfg.MaxTTL)
	}
	if got := token(t, acquire(t, l, "r")); got <= last {
		t.Errorf("token %d after %d", got, last)
	}
}

// A primary that comes back still has the scripts of its first reign in memory, and its successor's data. Data may
// have been lost between the two.
func TestAFormerPrimaryThatComesBackIsLostToo(t *testing.T) {
	t.Parallel()
	w := newWatchedNode(t)
	l := started(t, watchedConfig(w))
	last := counted(t, l)
	first := w.primary(t)
	at := first
	for range 2 { // there and back, without a crash
		eventually(t, 60*time.Second, "the Sentinel begins a failover", func() bool {
			return w.sentinel.Do(t.Context(), "SENTINEL", "failover", "main").Err() == nil
		})
		former := client(t, at)
		at = w.moved(t, at)
		// It has its successor's data only now.
		eventually(t, 60*time.Second, "the former primary is a replica", func() bool {
			return strings.Contains(former.Info(t.Context(), "replication").Val(), "master_link_status:up")
		})
	}
	if at != first {
		t.Fatalf("%s is the primary; want %s", at, first)
	}
	refused(t, l)
	must(t, admin.Of(l).Admit(t.Context(), "watched"))
	if got := token(t, acquire(t, l, "r")); got <= last {
		t.Errorf("token %d after %d", got, last)
	}
}

func TestAWatchedNodeIsOneOfThree(t *testing.T) {
	t.Parallel()
	w := newWatchedNode(t, "--min-replicas-to-write", "1")
	cfg, _ := own(t, 2, redisserver.Config{})
	cfg.Nodes = append(cfg.Nodes, w.node)
	cfg.MaxTTL, cfg.Armer, cfg.Epochs = watchedTTL, &register{}, &epochs{}
	l := started(t, cfg)
	last := counted(t, l)
	if st := status(t, l)[2]; !st.Admitted || st.Warning != "" {
		t.Errorf("status %+v", st)
	}
	first := w.fail(t, func() {
		if got := counted(t, l); got <= last { // the other two continue
			t.Errorf("token %d after %d", got, last)
		}
	})
	must(t, w.servers[first].Restart(t.Context())) // the new primary requires a connected replica
	eventually(t, 60*time.Second, "the node is admitted again", func() bool { return admin.Of(l).Status(t.Context())[2].Admitted })
}

func TestAPrimaryThatWritesWithoutReplicasIsWarnedOf(t *testing.T) {
	t.Parallel()
	w := newWatchedNode(t)
	l := started(t, watchedConfig(w))
	if st := status(t, l)[0]; !strings.Contains(st.Warning, "min-replicas-to-write") {
		t.Errorf("status %+v", st)
	}
}

func TestSentinelsMustKnowTheName(t *testing.T) {
	t.Parallel()
	addr := startSentinel(t, "")
	for name, node := range map[string]lock.Node{
		"unknown name": {Sentinels: []string{addr}, MasterName: "main"},
		"its address":  {Addr: addr}, // a Sentinel is not a server
	} {
		l := locker(t, lock.Config{Nodes: []lock.Node{node}, NodeTimeout: patient})
		if _, err := l.TryAcquire(t.Context(), "r"); err == nil || !strings.Contains(err.Error(), "Sentinel") {
			t.Errorf("%s: %v; want an error that names the Sentinel", name, err)
		}
	}
	for name, node := range map[string]lock.Node{
		"no name":        {Sentinels: []string{addr}},
		"both":           {Sentinels: []string{addr}, MasterName: "main", Addr: addr},
		"only the name":  {MasterName: "main"},
		"nothing at all": {},
	} {
		if _, err := lock.New(lock.Config{Nodes: []lock.Node{node}}); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

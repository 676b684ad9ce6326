//go:build linux && busy

package lock_test

import (
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/lock"
)

var (
	busyLeases = flag.Int("busy.leases", 6000, "how many leases TestKeptLeasesOutlastABusyMachine keeps")
	busyFor    = flag.Duration("busy.for", time.Minute, "how long it keeps them")
	busyLoops  = flag.Int("busy.loops", 4, "beside how many busy loops per core")
	busyNodes  = flag.Int("busy.nodes", 3, "on how many nodes")
)

// busy starts processes that use all the CPU time they get, until the returned function or the test's end stops them.
func busy(t *testing.T, loops int) (end func()) {
	t.Helper()
	var ends []func()
	for range loops {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		must(t, cmd.Start())
		pid := cmd.Process.Pid
		must(t, child.Adopt(pid, syscall.SIGKILL))
		ends = append(ends, func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			child.Disown(pid)
		})
	}
	end = sync.OnceFunc(func() {
		for _, f := range ends {
			f()
		}
	})
	t.Cleanup(end)
	return end
}

func (m *recorder) count(what string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, news := range m.news {
		if news == what {
			n++
		}
	}
	return n
}

// With the default settings, a kept lease survives a busy machine; it is lost only when its nodes lose it.
func TestKeptLeasesOutlastABusyMachine(t *testing.T) {
	t.Parallel()
	must(t, outlast(t, *busyLeases, 9*time.Second, *busyFor, *busyLoops*runtime.NumCPU()))
}

// outlast keeps leases beside busy loops, and returns an error if some are lost.
func outlast(t *testing.T, count int, ttl, lasting time.Duration, loops int) error {
	t.Helper()
	cfg := shared(t, *busyNodes)
	cfg.NodeTimeout = 0
	events := &recorder{}
	cfg.Metrics = events
	l := started(t, cfg)
	leases, errs := make([]*lock.Lease, count), make([]error, count)
	var all sync.WaitGroup
	for first := range 64 {
		all.Go(func() {
			for i := first; i < count; i += 64 {
				leases[i], errs[i] = l.Acquire(t.Context(), fmt.Sprintf("kept/%d", i), lock.WithTTL(ttl),
					lock.WithKeepAlive(lock.KeepAlive{For: time.Hour}))
			}
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	if err == nil {
		idle := busy(t, loops)
		<-time.After(lasting)
		idle()
	}
	lost := 0
	for _, lease := range leases {
		if lease == nil {
			continue
		}
		if lease.Context().Err() != nil {
			lost++
		}
		lease.ReleaseAsync()
	}
	t.Logf("%d leases of %v on %d nodes, %d busy loops, %v: %d lost, %d renewals, %d failed",
		count, ttl, *busyNodes, loops, lasting, lost, events.count("renewed"), events.count("failed extend no_quorum"))
	if lost > 0 {
		return fmt.Errorf("%d of %d leases are lost", lost, count)
	}
	return err
}

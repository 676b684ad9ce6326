// Package torture tests a lease source on real servers under faults. Processes race for few resources, renew, stop
// renewing, vanish and come late, while servers freeze, die and restart, their clocks jump and connections stall. The
// leases that the processes were given are then checked.
//
// The guarantee: the test fails if a token repeated or fell, if two holders had a resource at one time for longer than
// the source promises, if a lease was lost before its deadline, or if a resource was not free after its release.
//
//	torture.Run(t, torture.Config{
//		Servers: servers,
//		Open:    func(addrs []string) leasing.Source { … through these addresses … },
//		TTL:     time.Second,
//	})
//
// The flag -torture.for sets a run's duration.
package torture

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

var lasting = flag.Duration("torture.for", 6*time.Second, "how long a source of leases is tormented")

const (
	processes = 3
	callers   = 4 // per process
	resources = 5

	// enough is the number of leases that a run needs to be meaningful. On a busy machine a run is extended until then.
	enough = 4 * resources
	more   = 30 * time.Second

	// inTheEnd is how long all resources take at most to become free.
	inTheEnd = time.Minute
)

// Config configures a run.
type Config struct {
	Servers []Server
	// Open returns the source of one process. It must reach the servers by these addresses, in the order of Servers, so
	// that a process can be cut off from some of them. Run closes it.
	Open func(addrs []string) leasing.Source
	// TTL is the leases' time to live, plus or minus half.
	TTL time.Duration
	// Overlap is how long two may hold a resource by the source's
	// own guarantee, if clocks run at the same rate. Defaults to 0.
	Overlap time.Duration
	// For is the duration. Defaults to the flag's.
	For time.Duration
}

// Server is one real server of the source.
type Server struct {
	Addr         string // "": no process connects to it
	Freeze, Thaw func() error
	Kill         func() error // like kill -9
	Start        func() error // restarts it with its data
	// Jump sets the offset of its wall clock. Defaults to nil: the clock is left alone. It is for a source whose
	// guarantee does not depend on that clock.
	Jump func(offset time.Duration) error
}

// process is a process that acquires leases.
type process struct {
	source leasing.Source
	links  []*link // to each server
}

// torment is a run.
type torment struct {
	Config
	judge
	processes []process
}

// Run runs the processes and faults, and fails t if a rule was broken.
func Run(t testing.TB, cfg Config) {
	t.Helper()
	if cfg.For == 0 {
		cfg.For = *lasting
	}
	v := run(t, cfg)
	t.Logf("%v: %v", cfg.For, v)
	for _, text := range v.wrong(cfg.Overlap) {
		t.Error(text)
	}
}

func run(t testing.TB, cfg Config) verdict {
	t.Helper()
	m := &torment{Config: cfg, judge: judge{holds: make(map[string][]hold)}}
	for range processes {
		m.processes = append(m.processes, m.open(t))
	}
	ctx, cancel := context.WithTimeout(t.Context(), cfg.For+more)
	defer cancel()
	defer time.AfterFunc(cfg.For, func() { m.over(cancel) }).Stop()
	var done sync.WaitGroup
	for _, p := range m.processes {
		for range callers {
			done.Go(func() { m.use(ctx, t, p.source) })
		}
		done.Go(func() { m.cut(ctx, p) })
	}
	if len(cfg.Servers) > 0 {
		done.Go(func() { m.fault(ctx, t) })
	}
	done.Wait()
	m.stuck = m.allFree(t)
	return m.verdict()
}

// open starts a process with its own links.
func (m *torment) open(t testing.TB) process {
	t.Helper()
	var p process
	var addrs []string
	for _, s := range m.Servers {
		if s.Addr == "" {
			continue
		}
		l := newLink(t, s.Addr)
		p.links = append(p.links, l)
		addrs = append(addrs, l.addr)
	}
	p.source = m.Open(addrs)
	t.Cleanup(func() { _ = p.source.Close() })
	return p
}

// fault injects one fault after the other into the servers, and repairs each.
func (m *torment) fault(ctx context.Context, t testing.TB) {
	for ; ctx.Err() == nil; leases.Pause(ctx, rand.N(2*m.TTL)) {
		s := m.Servers[rand.N(len(m.Servers))]
		var err error
		switch n := rand.N(5); {
		case n == 0 && s.Jump != nil:
			err = s.Jump(anyOffset(m.TTL))
			m.count(&m.jumps)
		case n == 1:
			if err = s.Kill(); err == nil {
				leases.Pause(ctx, rand.N(m.TTL))
				err = s.Start()
			}
			m.count(&m.kills)
		default:
			if err = s.Freeze(); err == nil {
				leases.Pause(ctx, m.atMost())
				err = s.Thaw()
			}
			m.count(&m.freezes)
		}
		if err != nil {
			t.Errorf("a fault: %v", err)
			return
		}
	}
}

// anyOffset returns a positive or negative offset: a part of a TTL, or hours.
func anyOffset(ttl time.Duration) time.Duration {
	most := 2 * ttl
	if rand.N(3) == 0 {
		most = 12 * time.Hour
	}
	return rand.N(2*most) - most
}

// cut holds back what a process sends to some servers, or their answers, or both.
func (m *torment) cut(ctx context.Context, p process) {
	for {
		leases.Pause(ctx, rand.N(6*m.TTL))
		if ctx.Err() != nil || len(p.links) == 0 {
			return
		}
		all, ways := rand.N(3) == 0, 1+rand.N(3)
		var gates []*gate
		for _, l := range p.links {
			if all || rand.N(2) == 0 {
				gates = append(gates, l.ways(ways)...)
			}
		}
		for _, g := range gates {
			g.close()
		}
		leases.Pause(ctx, m.atMost())
		for _, g := range gates {
			g.open()
		}
		m.count(&m.cuts)
	}
}

// atMost returns how long a fault lasts: usually less than a TTL, sometimes more.
func (m *torment) atMost() time.Duration {
	if rand.N(4) == 0 {
		return rand.N(3 * m.TTL)
	}
	return rand.N(m.TTL / 2)
}

// allFree counts the resources that can't be acquired after the faults have ended.
func (m *torment) allFree(t testing.TB) (stuck int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), inTheEnd)
	defer cancel()
	for i := range resources {
		lease, err := leasing.One(m.processes[0].source.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: resource(i), TTL: m.TTL}))
		switch {
		case err == nil:
			_ = m.processes[0].source.Release(ctx, lease.Ref())
		case !errors.Is(err, leasing.ErrLost): // else it was acquired, and its TTL ended on the way
			t.Logf("%s is not free in the end: %v", resource(i), err)
			stuck++
		}
	}
	return stuck
}

// Package torture tests a lease source on real servers under faults. Processes race for few resources, renew, stop
// renewing, vanish and come late, while servers freeze, die and restart, their clocks jump, connections of a process or
// to a server stall and lose answers, and the processes themselves are stopped. The leases that the processes were given
// are then checked.
//
// The guarantee: the test fails if a token repeated or fell, if two holders had a resource at one time for longer than
// the source promises, if a lease was lost before its deadline or looked valid after it, if a resource was not free
// after its release, or can't be acquired when the faults are over.
//
//	func TestMain(m *testing.M) {
//		torture.Main(func(setup []byte, addrs []string) (torture.Client, error) { … through these addresses … })
//		testenv.VerifyMain(m)
//	}
//
//	torture.Run(t, torture.Config{Servers: servers, TTL: time.Second})
package torture

import (
	"cmp"
	"context"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/leases"
)

var (
	// For is how long each run of a torture lasts.
	For = flag.Duration("torture.for", 0, "how long each torture lasts; 0: its short form")
	// Seed makes the same faults and choices again, though not at the same instants of a protocol.
	Seed = flag.Uint64("torture.seed", 0, "seed of a torture's faults; 0: a new one")
)

const (
	short = 6 * time.Second // without For
	more  = 3 * time.Minute // that a run goes on on a busy machine, until it has enough leases

	// inTheEnd is how long all resources take at most to become free.
	inTheEnd = time.Minute
)

// Config configures a run.
type Config struct {
	Servers []Server
	Setup   any           // for Open, as JSON
	TTL     time.Duration // of the leases, plus or minus half

	Processes int // 0: three
	Callers   int // of each process; 0: four
	Resources int // 0: five

	First   bool          // the servers have to be prepared, by Client.First
	Overlap time.Duration // how long two may hold a resource by the source's own guarantee, if clocks run at the same rate
	Lag     time.Duration // how long after its release a server may show a lease
	Loses   bool          // the servers may lose leases, which end before their deadline then
	Renamed time.Duration // the resources get other names so often, because servers may keep leases for ever; 0: never

	Enough  int                // leases that the run needs to be meaningful; 0: 20
	Longest time.Duration      // of a server's faults; 0: four TTLs
	For     time.Duration      // 0: the flag's
	Until   func(Verdict) bool // ends the run; nil: nothing does before its time
}

func (c Config) enough() int { return cmp.Or(c.Enough, 20) }

// Server is one real server of the source.
type Server struct {
	Addr   string // "": no process connects to it
	Faults []Fault
}

// Fault is one of the faults of a server.
type Fault struct {
	Name  string // of what happened to it, such as "frozen"
	Odds  int    // relative to the others
	Begin func(*rand.Rand) error
	End   func() error // nil: it does not last
}

// Frozen stops a server for a while.
func Frozen(odds int, freeze, thaw func() error) Fault {
	return Fault{"servers frozen", odds, func(*rand.Rand) error { return freeze() }, thaw}
}

// Killed is like kill -9. The server starts again with its data.
func Killed(odds int, kill, start func() error) Fault {
	return Fault{"servers killed", odds, func(*rand.Rand) error { return kill() }, start}
}

// Jumped sets the offset of a server's wall clock.
func Jumped(odds int, set func(time.Duration) error) Fault {
	return Fault{"clocks set", odds, func(r *rand.Rand) error { return set(Offset(r)) }, nil}
}

// Offset is none, or up to hours, into the future or the past.
func Offset(random *rand.Rand) time.Duration {
	reach := []time.Duration{1, 5 * time.Millisecond, 50 * time.Millisecond, time.Second, time.Minute, 12 * time.Hour}[random.IntN(6)]
	return up(random, 2*reach) - reach
}

// Run runs the processes and faults, and fails t if a rule was broken.
func Run(t testing.TB, cfg Config) Verdict {
	t.Helper()
	v := Play(t, cfg)
	t.Logf("%v", v)
	for _, text := range v.wrong(cfg) {
		t.Error(text)
	}
	return v
}

// Play is Run without a judgement.
func Play(t testing.TB, cfg Config) Verdict {
	t.Helper()
	return play(t, cfg, startProcess)
}

func play(t testing.TB, cfg Config, start func(testing.TB, part, func(event)) Process) Verdict {
	t.Helper()
	f := NewField(t, cfg)
	f.counts = true
	part := f.part(t)
	alone := func(as role) {
		part.Role, part.Addrs = as, addrs(f.Servers)
		if err := start(t, part, f.judge.take).End(); err != nil {
			t.Error(err)
		}
		part.Role = acquires
	}
	if f.First {
		alone(first)
	}
	for range f.Processes {
		part.Addrs, part.Seed = f.Connect(t), f.random.Uint64()
		f.processes[len(f.processes)-1].Process = start(t, part, f.judge.take)
	}
	ctx, done := context.WithTimeout(t.Context(), f.For+more)
	defer done()
	var faults sync.WaitGroup
	faults.Go(func() { f.Torment(ctx, t) })
	over := time.Now().Add(f.For)
	for ; ctx.Err() == nil; leases.Pause(ctx, max(f.TTL, 200*time.Millisecond)) {
		if f.Until != nil && f.Until(f.judge.judged()) || f.judge.given() >= f.enough() && time.Now().After(over) {
			done()
		}
	}
	faults.Wait()
	for _, p := range f.processes {
		if err := p.End(); err != nil {
			t.Error(err)
		}
	}
	if f.Renamed == 0 {
		alone(last)
	}
	return f.judge.judged()
}

// Field is the servers of a run, the links to them, and their faults.
type Field struct {
	Config
	random    *rand.Rand
	judge     *judge
	counts    bool // leases, which its processes report
	processes []*reached
}

// reached is a process and its links to the servers.
type reached struct {
	links []*link
	Process
}

// NewField has no links yet.
func NewField(t testing.TB, cfg Config) *Field {
	t.Helper()
	set := func(n *int, to int) {
		if *n == 0 {
			*n = to
		}
	}
	set(&cfg.Processes, 3)
	set(&cfg.Callers, 4)
	set(&cfg.Resources, 5)
	if cfg.For == 0 {
		cfg.For = max(*For, short)
	}
	if cfg.Longest == 0 {
		cfg.Longest = 4 * cfg.TTL
	}
	seed := *Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	return &Field{Config: cfg, random: rand.New(rand.NewPCG(seed, 1)), judge: newJudge()}
}

// Faults says which faults there were, and how many.
func (f *Field) Faults() string { return f.judge.judged().faults() }

// addrs are the servers' own.
func addrs(servers []Server) (all []string) {
	for _, s := range servers {
		if s.Addr != "" {
			all = append(all, s.Addr)
		}
	}
	return all
}

func (f *Field) part(t testing.TB) part {
	t.Helper()
	return part{Setup: asJSON(t, f.Setup), TTL: f.TTL, Lag: f.Lag, Callers: f.Callers, Resources: f.Resources, Renamed: f.Renamed}
}

// Connect makes links for one more process, and returns the addresses.
func (f *Field) Connect(t testing.TB) (through []string) {
	t.Helper()
	p := &reached{}
	for _, server := range addrs(f.Servers) {
		l := newLink(t, server)
		p.links, through = append(p.links, l), append(through, l.addr)
	}
	f.processes = append(f.processes, p)
	return through
}

// Torment injects faults into the servers and between them and the processes until ctx ends, and repairs each.
func (f *Field) Torment(ctx context.Context, t testing.TB) {
	var all sync.WaitGroup
	for _, s := range f.Servers {
		own := rand.New(rand.NewPCG(f.random.Uint64(), 2))
		all.Go(func() { f.repeat(ctx, t, own, func() (Fault, time.Duration) { return f.ofServer(own, s) }) })
	}
	for _, p := range f.processes {
		own := rand.New(rand.NewPCG(f.random.Uint64(), 3))
		all.Go(func() { f.repeat(ctx, t, own, func() (Fault, time.Duration) { return f.ofProcess(own, p) }) })
	}
	all.Wait()
}

// between is how many leases are given before the next fault of the same server or process, unless that takes longer
// than any fault. Faults that come by time alone leave a busy machine no time for an acquisition.
const between = 3

// repeat injects one fault after the other, and ends each.
func (f *Field) repeat(ctx context.Context, t testing.TB, random *rand.Rand, next func() (Fault, time.Duration)) {
	for {
		leases.Pause(ctx, up(random, 2*time.Duration(max(1, len(f.Servers)))*f.TTL))
		for given, end := f.judge.given(), time.Now().Add(f.Longest); f.counts && f.judge.given() < given+between && time.Now().Before(end) && ctx.Err() == nil; {
			leases.Pause(ctx, f.TTL/10)
		}
		fault, lasts := next()
		if ctx.Err() != nil || fault.Begin == nil {
			return
		}
		err := fault.Begin(random)
		if err == nil && fault.End != nil {
			leases.Pause(ctx, lasts)
			err = fault.End()
		}
		if err != nil {
			t.Errorf("a fault, %s: %v", fault.Name, err)
			return
		}
		f.judge.played(fault.Name)
	}
}

// ofServer is one of the server's own faults, or one of all processes' links to it.
func (f *Field) ofServer(random *rand.Rand, s Server) (Fault, time.Duration) {
	total := 0
	for _, fault := range s.Faults {
		total += fault.Odds
	}
	var links []*link
	for _, p := range f.processes {
		for _, l := range p.links {
			if l.server == s.Addr {
				links = append(links, l)
			}
		}
	}
	if len(links) > 0 && (total == 0 || random.IntN(2) == 0) {
		return f.ofLinks(random, "servers", links)
	}
	pick := random.IntN(max(1, total))
	for _, fault := range s.Faults {
		if pick -= fault.Odds; pick < 0 {
			return fault, f.atMost(random, f.Longest)
		}
	}
	return Fault{}, 0
}

// ofProcess stops the process, or is one of some of its links.
func (f *Field) ofProcess(random *rand.Rand, p *reached) (Fault, time.Duration) {
	if random.IntN(4) == 0 && p.Stop != nil {
		return Fault{"processes stopped", 0, func(*rand.Rand) error { return p.Stop() }, p.Cont}, f.atMost(random, 4*f.TTL)
	}
	if len(p.links) == 0 {
		return Fault{}, 0
	}
	var links []*link
	all := random.IntN(3) == 0
	for _, l := range p.links {
		if all || random.IntN(2) == 0 {
			links = append(links, l)
		}
	}
	return f.ofLinks(random, "processes", links)
}

// ofLinks makes links lose answers, or hold back requests, answers or both.
func (f *Field) ofLinks(random *rand.Rand, whose string, links []*link) (Fault, time.Duration) {
	each := func(do func(*link)) error {
		for _, l := range links {
			do(l)
		}
		return nil
	}
	lasts := f.atMost(random, 4*f.TTL)
	if random.IntN(2) == 0 {
		lose := func(n int32) error { return each(func(l *link) { l.losing.Add(n) }) }
		return Fault{whose + " without answers", 0, func(*rand.Rand) error { return lose(1) }, func() error { return lose(-1) }}, lasts
	}
	which := random.IntN(3)
	turn := func(to func(*way)) error {
		return each(func(l *link) {
			for _, w := range l.ways(which) {
				to(w)
			}
		})
	}
	return Fault{whose + " cut off", 0, func(*rand.Rand) error { return turn((*way).shut) }, func() error { return turn((*way).open) }}, lasts
}

// atMost is how long a fault lasts: usually less than a TTL, sometimes more.
func (f *Field) atMost(random *rand.Rand, longest time.Duration) time.Duration {
	switch random.IntN(16) {
	case 0:
		return up(random, longest)
	case 1, 2, 3:
		return up(random, 4*f.TTL)
	default:
		return up(random, f.TTL)
	}
}

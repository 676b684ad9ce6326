package torture

import (
	"context"
	"crypto/rand"
	"errors"
	random "math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 30 * time.Second

// Each of these sources breaks one rule, and the judge has to detect it.
func TestTheJudgeCatchesASourceThatBreaksARule(t *testing.T) {
	t.Parallel()
	inOrder := func(v Verdict) bool { return v.Duplicates+v.Falling == 0 }
	for broken, seen := range map[string]func(v Verdict) bool{
		"":                        func(v Verdict) bool { return len(v.wrong(Config{})) == 0 },
		"the same token again":    func(v Verdict) bool { return v.Duplicates > 0 },
		"tokens fall":             func(v Verdict) bool { return v.Falling > 0 && v.Duplicates == 0 },
		"two holders":             func(v Verdict) bool { return v.Overlaps > 0 && inOrder(v) },
		"ends early":              func(v Verdict) bool { return v.Overlaps > 0 && inOrder(v) },
		"extends beyond the TTL":  func(v Verdict) bool { return v.Overlaps > 0 && inOrder(v) },
		"revives leases":          func(v Verdict) bool { return v.Overlaps > 0 },
		"loses leases":            func(v Verdict) bool { return v.Early > 0 && len(v.wrong(Config{Loses: true})) == 0 },
		"releases nothing":        func(v Verdict) bool { return v.Kept > 0 },
		"leases never end":        func(v Verdict) bool { return v.Stuck > 0 },
		"handles know no end":     func(v Verdict) bool { return v.Late > 0 && len(v.wrong(Config{})) == 1 },
		"the second source fails": func(v Verdict) bool { return len(v.Strange) > 0 },
		"fails":                   func(v Verdict) bool { return len(v.Strange) > 0 },
		"gives hardly anything":   func(v Verdict) bool { return len(v.wrong(Config{})) > 0 && v.Leases < Config{}.enough() },
	} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &board{broken: broken, clock: clock.New(), begun: time.Now(), leases: make(map[string]entry)}
				v := play(t, Config{TTL: ttl, For: 40 * ttl, Lag: ttl / 4}, b.start)
				if !seen(v) {
					t.Errorf("%q was not seen: %v: %q", broken, v, v.wrong(Config{}))
				}
			})
		})
	}
}

// A source that relies on a server's wall clock ends leases early when that clock jumps.
func TestTheJudgeCatchesASourceThatBelievesAJumpingClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &board{clock: clock.New(), begun: time.Now(), leases: make(map[string]entry)}
		v := play(t, Config{Servers: []Server{{Faults: []Fault{Jumped(1, b.jump)}}}, TTL: ttl, For: 40 * ttl}, b.start)
		if v.Faults["clocks set"] == 0 || v.Overlaps+v.Early == 0 {
			t.Errorf("it was not seen: %v: %q", v, v.wrong(Config{}))
		}
	})
}

// Two may hold a resource at one time for as long as the source promises, and no longer.
func TestAnOverlapIsWrongBeyondWhatIsAllowed(t *testing.T) {
	t.Parallel()
	j := newJudge()
	for _, h := range []Hold{{Token: 1, Asked: 0, From: 1, To: 50}, {Token: 2, Asked: 20, From: 40, To: 90}} {
		h.Resource, h.Asked, h.From, h.To = "r", h.Asked*1e6, h.From*1e6, h.To*1e6 // milliseconds
		j.take(event{Hold: &h})
	}
	for i := range (Config{}).enough() {
		j.take(event{Hold: &Hold{Resource: strconv.Itoa(i), Token: 1, From: 1, To: 2}})
	}
	v := j.judged()
	if ten, nine := v.wrong(Config{Overlap: 10 * time.Millisecond}), v.wrong(Config{Overlap: 9 * time.Millisecond}); len(ten) != 0 || len(nine) != 1 {
		t.Errorf("%v: %q at 10 ms, %q at 9 ms", v, ten, nine)
	}
}

// A lease that renews itself is held until its release, or as long as its holder relied on it when it vanished.
func TestARenewedLeaseIsHeldUntilItsLastDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &player{part: part{TTL: ttl}, timeline: timeline{origin: time.Now()}}
		for seed := range uint64(100) {
			l, h := &renewed{clock: clock.New()}, Hold{To: p.at(time.Now())}
			err := p.have(t.Context(), l, &h, ttl, random.New(random.NewPCG(seed, 1)))
			want := p.at(time.Now())
			if !l.released {
				want += ttl
			}
			if h.To != want || err != nil && !l.released {
				t.Errorf("seed %d, released %t: recorded until %v, want %v (%v)", seed, l.released, h.To, want, err)
			}
		}
	})
}

// renewed is a lease that has always just been renewed.
type renewed struct {
	anyLease
	clock    *clock.Clock
	released bool
}

func (l *renewed) Deadline() clock.Instant                     { return l.clock.Now().Add(ttl) }
func (l *renewed) Extend(context.Context, time.Duration) error { return nil }

func (l *renewed) Release(context.Context) error {
	l.released = true
	return leasing.ErrUnavailable
}

// The faults of a server's links are those of all processes at once, and no other fault of a link ends them.
func TestAServerIsCutOffFromAllProcesses(t *testing.T) {
	t.Parallel()
	f := NewField(t, Config{Servers: []Server{{Addr: "a"}, {Addr: "b"}}, TTL: ttl})
	f.Connect(t)
	f.Connect(t)
	whole := func(l *link) bool {
		over, end := context.WithCancel(t.Context())
		end()
		return l.requests.pass(over) && l.answers.pass(over) && l.losing.Load() == 0
	}
	chosen := random.New(random.NewPCG(1, 2))
	played := map[string]int{}
	for range 50 {
		server, _ := f.ofServer(chosen, f.Servers[0])
		other, _ := f.ofLinks(chosen, "processes", f.processes[0].links)
		err := errors.Join(server.Begin(chosen), other.Begin(chosen), other.End())
		for _, p := range f.processes {
			if whole(p.links[0]) || !whole(p.links[1]) {
				t.Fatalf("%s: the links to the server are whole: %t, those to the other one: %t", server.Name, whole(p.links[0]), whole(p.links[1]))
			}
		}
		if err = errors.Join(err, server.End()); err != nil || !whole(f.processes[0].links[0]) || !whole(f.processes[1].links[0]) {
			t.Fatalf("%s has not ended: %v", server.Name, err)
		}
		played[server.Name]++
	}
	if played["servers cut off"] == 0 || played["servers without answers"] == 0 {
		t.Errorf("faults: %v", played)
	}
}

func TestTokensThatComeTwiceAndFallAreCounted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		holds       []Hold
		twice, fell int
	}{
		"fine":       {[]Hold{{Asked: 0, From: 10, Token: 1}, {Asked: 11, From: 20, Token: 2}}, 0, 0},
		"overlapped": {[]Hold{{Asked: 0, From: 10, Token: 2}, {Asked: 5, From: 20, Token: 1}}, 0, 0},
		"twice":      {[]Hold{{Asked: 0, From: 10, Token: 2}, {Asked: 5, From: 20, Token: 2}}, 1, 0},
		"fell":       {[]Hold{{Asked: 0, From: 10, Token: 2}, {Asked: 11, From: 20, Token: 1}}, 0, 1},
	} {
		if twice, fell := Tokens(c.holds); twice != c.twice || fell != c.fell {
			t.Errorf("%s: %d came twice, %d fell", name, twice, fell)
		}
	}
}

func TestOverlapsAreSeen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		holds   []Hold
		count   int
		longest time.Duration
	}{
		"one after the other":       {[]Hold{{Token: 1, From: 0, To: 10}, {Token: 2, From: 10, To: 20}, {Token: 3, From: 25, To: 30}}, 0, 0},
		"side by side":              {[]Hold{{Token: 2, From: 5, To: 20}, {Token: 1, From: 0, To: 10}}, 1, 5},
		"two in one":                {[]Hold{{Token: 1, From: 0, To: 30}, {Token: 2, From: 10, To: 20}, {Token: 3, From: 21, To: 25}}, 1, 20},
		"the older one comes later": {[]Hold{{Token: 2, From: 5, To: 10}, {Token: 1, From: 20, To: 30}}, 1, 25},
		"of equal tokens":           {[]Hold{{Token: 1, From: 5, To: 20}, {Token: 1, From: 0, To: 10}}, 1, 5},
	} {
		found, longest := overlaps(c.holds), time.Duration(0)
		for _, o := range found {
			longest = max(longest, o.Lasted)
		}
		if len(found) != c.count || longest != c.longest {
			t.Errorf("%s: %d, at most %d", name, len(found), longest)
		}
	}
}

// board keeps leases in memory, and breaks one rule.
type board struct {
	broken string
	clock  *clock.Clock
	begun  time.Time

	mu     sync.Mutex
	given  fence.Token
	leases map[string]entry
	ahead  time.Duration // the clock's offset
}

type entry struct {
	owner string
	token fence.Token
	until time.Time
}

// start starts a process that is a part of this one.
func (b *board) start(t testing.TB, what part, take func(event)) Process {
	p := &player{
		part: what, Client: Client{Source: toy{board: b}, Handle: b.handle}, second: Client{Source: toy{b, true}},
		timeline: timeline{origin: b.begun}, report: take,
	}
	ctx, stop := context.WithCancel(t.Context())
	played := make(chan error, 1)
	go func() { played <- p.play(ctx) }()
	return Process{End: func() error {
		stop()
		return <-played
	}}
}

// handle acquires a lease with a handle.
func (b *board) handle(ctx context.Context, wait leasing.Wait, r leasing.Request, _ int) (Handle, error) {
	lease, err := leasing.One(toy{board: b}.Acquire(ctx, wait, r))
	return &knob{byReference{lease, toy{board: b}}, b.broken == "handles know no end"}, err
}

type knob struct {
	byReference
	endless bool
}

func (k *knob) Context() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	if cancel(); k.endless || !k.Deadline().Passed() {
		return context.Background()
	}
	return ctx
}

func (k *knob) Grant() (fence.Grant, error) { return k.Lease.Grant, k.Context().Err() }
func (k *knob) ReleaseAsync()               { _ = k.Release(context.Background()) }

func (b *board) jump(offset time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ahead += offset.Abs()
	return nil
}

func (b *board) current(resource string) (entry, bool) {
	e, ok := b.leases[resource]
	early := map[string]time.Duration{"ends early": ttl / 5, "leases never end": -time.Hour}[b.broken]
	return e, ok && time.Now().Add(b.ahead).Before(e.until.Add(-early))
}

// toy is one of the two sources of a process.
type toy struct {
	*board
	second bool
}

func (s toy) try(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return leasing.Lease{}, ctx.Err()
	case s.broken == "fails" || s.broken == "the second source fails" && s.second:
		return leasing.Lease{}, errors.New("failed")
	}
	_, held := s.current(r.Resource)
	if held && s.broken != "two holders" || s.broken == "gives hardly anything" && s.given > 3 {
		return leasing.Lease{}, &leasing.HeldError{Resource: r.Resource}
	}
	s.given++
	e := entry{owner: rand.Text(), token: s.given, until: time.Now().Add(r.TTL)}
	switch s.broken {
	case "the same token again":
		e.token = 1 + s.given/2
	case "tokens fall":
		e.token = 1_000_000 - s.given
	}
	s.leases[r.Resource] = e
	return leasing.Lease{Grant: fence.Grant{Resource: r.Resource, Token: e.token}, Owner: e.owner, Deadline: s.clock.Now().Add(r.TTL)}, nil
}

func (s toy) Acquire(ctx context.Context, wait leasing.Wait, all ...leasing.Request) ([]leasing.Lease, error) {
	acquire := s.try
	if wait {
		acquire = s.wait
	}
	lease, err := acquire(ctx, all[0])
	return []leasing.Lease{lease}, err
}

func (s toy) wait(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	tick := time.NewTicker(ttl / 100)
	defer tick.Stop()
	for {
		lease, err := s.try(ctx, r)
		if err == nil || ctx.Err() != nil {
			return lease, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return lease, err
		}
	}
}

func (s toy) Extend(_ context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, alive := s.current(ref.Resource)
	switch {
	case s.broken == "revives leases":
		e.owner = ref.Owner
	case !alive || e.owner != ref.Owner || s.broken == "loses leases":
		return clock.Instant{}, leasing.ErrLost
	}
	e.until = time.Now().Add(ttl)
	s.leases[ref.Resource] = e
	if s.broken == "extends beyond the TTL" {
		ttl += ttl / 5
	}
	return s.clock.Now().Add(ttl), nil
}

func (s toy) Release(_ context.Context, ref leasing.Ref) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, alive := s.current(ref.Resource)
	if !alive || e.owner != ref.Owner {
		return leasing.ErrLost
	}
	if s.broken != "releases nothing" {
		delete(s.leases, ref.Resource)
	}
	return nil
}

func (s toy) Inspect(_ context.Context, resources ...string) ([]leasing.Inspection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, held := s.current(resources[0])
	return []leasing.Inspection{{Resource: resources[0], Locked: held, Owner: e.owner}}, nil
}

func (toy) Ready(context.Context) (string, error) { return "", nil }
func (toy) Close() error                          { return nil }

package torture

import (
	"context"
	"crypto/rand"
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
	for broken, seen := range map[string]func(v verdict) bool{
		"":                       func(v verdict) bool { return len(v.wrong(0)) == 0 },
		"the same token again":   func(v verdict) bool { return v.duplicates > 0 },
		"tokens fall":            func(v verdict) bool { return v.falling > 0 && v.duplicates == 0 },
		"two holders":            func(v verdict) bool { return len(v.overlaps) > 0 && v.duplicates+v.falling == 0 },
		"ends early":             func(v verdict) bool { return len(v.overlaps) > 0 && v.duplicates+v.falling == 0 },
		"extends beyond the TTL": func(v verdict) bool { return len(v.overlaps) > 0 && v.duplicates+v.falling == 0 },
		"revives leases":         func(v verdict) bool { return len(v.overlaps) > 0 },
		"loses leases":           func(v verdict) bool { return v.early > 0 },
		"releases nothing":       func(v verdict) bool { return v.kept > 0 },
		"leases never end":       func(v verdict) bool { return v.stuck > 0 },
		"gives hardly anything":  func(v verdict) bool { return len(v.wrong(0)) > 0 && v.leases < enough },
	} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &board{broken: broken, clock: clock.New(), leases: make(map[string]entry)}
				v := run(t, Config{Open: func([]string) leasing.Source { return toy{b} }, TTL: ttl, For: 40 * ttl})
				if !seen(v) {
					t.Errorf("%q was not seen: %v: %q", broken, v, v.wrong(0))
				}
			})
		})
	}
}

// A source that relies on a server's wall clock ends leases early when that clock jumps.
func TestTheJudgeCatchesASourceThatBelievesAJumpingClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nothing := func() error { return nil }
		b := &board{clock: clock.New(), leases: make(map[string]entry)}
		v := run(t, Config{
			Servers: []Server{{Freeze: nothing, Thaw: nothing, Kill: nothing, Start: nothing, Jump: b.jump}},
			Open:    func([]string) leasing.Source { return toy{b} },
			TTL:     ttl, For: 120 * ttl, // dozens of faults, of which one in six is a jump
		})
		if v.jumps == 0 || len(v.overlaps)+v.early == 0 {
			t.Errorf("it was not seen: %v: %q", v, v.wrong(0))
		}
	})
}

// Two may hold a resource at one time for as long as the source promises, and no longer.
func TestAnOverlapIsWrongBeyondWhatIsAllowed(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	at := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	j := judge{holds: map[string][]hold{"r": {
		{resource: "r", token: 1, asked: at(0), from: at(1), to: at(50)},
		{resource: "r", token: 2, asked: at(20), from: at(40), to: at(90)},
	}}}
	for i := range enough {
		j.note(hold{resource: resource(i), token: 1, asked: at(0), from: at(1), to: at(2)})
	}
	if v := j.verdict(); len(v.wrong(10*time.Millisecond)) != 0 || len(v.wrong(9*time.Millisecond)) != 1 {
		t.Errorf("%v: %q at 10 ms, %q at 9 ms", v, v.wrong(10*time.Millisecond), v.wrong(9*time.Millisecond))
	}
}

// board keeps leases in memory, and breaks one rule.
type board struct {
	broken string
	clock  *clock.Clock

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

// toy is one process's source.
type toy struct{ *board }

func (s toy) try(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return leasing.Lease{}, ctx.Err()
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

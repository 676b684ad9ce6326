package judge

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"

	"github.com/fencegate/fencegate/robustness/history"
)

// sim is a correct product in virtual time: locks that sometimes expire early, a fence that refuses every stale write,
// lost answers, zombies, and failovers that lose the newest commits. The judge must find nothing in its histories.
type sim struct {
	rng     *rand.Rand
	now     int64
	queue   events
	calls   int
	seq     int64
	ops     []history.Op
	effects []timed
	losses  []Loss
	places  map[string]*simResource
	down    int64 // no primary answers until then
	counter int64
	stops   []history.Span
}

type timed struct {
	Effect

	at int64
}

// simResource is the product's state of one resource.
type simResource struct {
	name      string
	registers []string
	token     int64 // the highest that was given
	holder    int64
	expires   int64
	fence     int64
	values    map[string]string
	past      []simState
}

// simState is a state that a standby may have.
type simState struct {
	at     int64
	fence  int64
	values map[string]string
}

const ms = int64(1_000_000)

// ahead is how far the wall clock is ahead of the monotonic one.
const ahead = int64(1_700_000_000_000_000_000)

// simulate generates the evidence of one round.
func simulate(seed uint64, round, calls int, async bool) Evidence {
	s := &sim{
		rng: rand.New(rand.NewPCG(seed, 1)), now: int64(round) * 1000_000 * ms, seq: int64(round) * 1e6,
		places: map[string]*simResource{},
	}
	var names []string
	for i := range 6 {
		name := fmt.Sprintf("robust/r%d-%d", round, i)
		registers := []string{"row:" + name}
		if i%3 == 1 {
			registers = []string{"file:" + name + "/data"}
		}
		if i%3 == 2 {
			registers = append(registers, "file:"+name+"/data")
		}
		s.places[name] = &simResource{name: name, registers: registers, values: map[string]string{}}
		names = append(names, name)
	}
	for client := range 12 {
		s.work(client+1, round, names, calls)
	}
	if async {
		for i := range 3 {
			s.after(int64(calls)*ms*int64(i+1)/8, s.failover)
		}
	}
	s.run()
	for _, name := range names {
		s.audit(round, s.places[name])
	}
	s.run()
	ev := Evidence{
		Ops: s.ops, Lost: s.losses, Async: async, Stops: s.stops, Now: s.now, WallAhead: ahead,
		Healed: map[int]int64{round: s.now}, Resting: map[int]int64{},
	}
	for _, e := range s.effects {
		ev.Effects = append(ev.Effects, e.Effect)
	}
	for client := range 12 {
		ev.Resting[client+1] = s.now
	}
	return ev
}

func (s *sim) after(d int64, do func()) {
	s.counter++
	heap.Push(&s.queue, event{s.now + d, s.counter, do})
}

func (s *sim) run() {
	for len(s.queue) > 0 {
		e := heap.Pop(&s.queue).(event)
		s.now = e.at
		e.do()
	}
}

func (s *sim) upTo(n int64) int64     { return 1 + s.rng.Int64N(n) }
func (s *sim) chance(of float64) bool { return s.rng.Float64() < of }

// call makes a call that takes effect between its beginning and
// its end. If the answer is lost, it may take effect later.
func (s *sim) call(op history.Op, effect func(op *history.Op), then func(op history.Op)) {
	s.calls++
	op.ID = fmt.Sprintf("c%d-%d", op.Client, s.calls)
	op.Begin, op.Limit = s.now, s.now+3000*ms
	if op.Action != history.Read {
		begun := op
		begun.Outcome = history.Begun
		s.ops = append(s.ops, begun)
	}
	answered := op.Client == auditor || op.Action == history.Read || s.chance(0.9)
	cut := false
	at := s.upTo(4 * ms)
	s.after(at, func() {
		if s.now < s.down {
			cut, op.Outcome = true, history.Unknown
			return
		}
		effect(&op)
	})
	switch {
	case answered:
		s.after(at+s.upTo(4*ms), func() {
			op.End = s.now
			if cut && op.Action == history.Read {
				op.Outcome = history.Failed
			}
			s.ops = append(s.ops, op)
			then(op)
		})
	case s.chance(0.2): // killed
		s.after(at, func() {
			s.stops = append(s.stops, history.Span{Client: op.Client, What: Killed, From: s.now, To: s.now + ms})
		})
		s.after(at+30*ms, func() { then(op) })
	default:
		answer := op
		answer.Outcome = history.Unknown
		s.after(s.upTo(8*ms), func() {
			answer.End = s.now
			s.ops = append(s.ops, answer)
			then(answer)
		})
	}
}

// work is a worker's loop.
func (s *sim) work(client, round int, names []string, calls int) {
	if s.calls >= calls {
		return
	}
	r := s.places[names[s.rng.IntN(len(names))]]
	again := func() { s.after(s.upTo(20*ms), func() { s.work(client, round, names, calls) }) }
	op := history.Op{Client: client, Round: round, Surface: "library", Resource: r.name}
	s.acquire(op, r, func(op history.Op) {
		if op.Outcome != history.Done {
			again()
			return
		}
		s.hold(op, r, 1+s.rng.IntN(3), again)
	})
}

func (s *sim) acquire(op history.Op, r *simResource, then func(history.Op)) {
	op.Action = history.Acquire
	op.Until = s.now + 60*ms
	s.call(op, func(op *history.Op) {
		early := s.rng.Int64N(20 * ms) // the lock's clock runs fast
		if r.holder != 0 && s.now < r.expires-early {
			op.Outcome, op.Code, op.HeldBy = history.Refused, "held", r.holder
			return
		}
		r.token = max(r.token, r.fence) + s.upTo(3)
		r.holder, r.expires = r.token, s.now+60*ms
		s.keep(r)
		r.fence = r.token
		op.Outcome, op.Token = history.Done, r.token
	}, then)
}

// hold reads every register, writes some times, and then releases, leaves, or continues as a zombie.
func (s *sim) hold(lease history.Op, r *simResource, writes int, again func()) {
	op := history.Op{
		Client: lease.Client, Round: lease.Round, Surface: lease.Surface, Resource: r.name, Token: lease.Token,
	}
	s.readAll(op, r, 0, map[string]string{}, func(based map[string]string) {
		s.after(s.upTo(40*ms), func() {
			s.write(op, r, based, writes, func() {
				if s.chance(0.3) { // a zombie, later
					s.after(s.upTo(300*ms), func() { s.write(op, r, based, 1, again) })
					return
				}
				s.release(op, r, again)
			})
		})
	})
}

func (s *sim) readAll(op history.Op, r *simResource, i int, based map[string]string, then func(map[string]string)) {
	if i == len(r.registers) {
		then(based)
		return
	}
	read := op
	read.Action, read.Register, read.Under = history.Read, r.registers[i], true
	s.call(read, func(op *history.Op) {
		op.Outcome, op.Saw = history.Done, r.values[op.Register]
	}, func(done history.Op) {
		if done.Outcome != history.Done {
			s.after(ms, func() { s.readAll(op, r, i, based, then) })
			return
		}
		based[done.Register] = done.Saw
		s.readAll(op, r, i+1, based, then)
	})
}

func (s *sim) write(op history.Op, r *simResource, based map[string]string, n int, then func()) {
	if n == 0 {
		then()
		return
	}
	w := op
	w.Action, w.Based = history.Write, maps.Clone(based)
	s.call(w, func(w *history.Op) {
		switch {
		case s.chance(0.03):
			w.Outcome = history.Failed
		case w.Token < r.fence:
			w.Outcome, w.Code = history.Refused, "ZF001"
		default:
			w.Outcome = history.Done
			s.apply(w, r)
		}
	}, func(done history.Op) {
		if done.Outcome == history.Done && s.chance(0.5) {
			for name := range based {
				based[name] = done.ID
			}
		}
		s.write(op, r, based, n-1, then)
	})
}

func (s *sim) apply(w *history.Op, r *simResource) {
	s.keep(r)
	r.fence = w.Token
	r.values = maps.Clone(r.values)
	for _, name := range r.registers {
		s.seq++
		s.effects = append(s.effects, timed{Effect{
			Seq: s.seq, Register: name, Value: w.ID, Overwrote: r.values[name], Resource: r.name, Token: w.Token, Wall: s.now + ahead,
		}, s.now})
		r.values[name] = w.ID
	}
}

// keep records the state before a change, for a lagging standby.
func (s *sim) keep(r *simResource) {
	r.past = append(r.past, simState{s.now, r.fence, r.values})
}

func (s *sim) release(op history.Op, r *simResource, then func()) {
	op.Action = history.Release
	s.call(op, func(op *history.Op) {
		op.Outcome = history.Done
		if r.holder == op.Token {
			r.holder = 0
		}
	}, func(history.Op) { then() })
}

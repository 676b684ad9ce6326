package client

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/stack/stacktest"
	"github.com/fencegate/fencegate/robustness/history"
)

// TestSurfaces runs these rules for each surface on one stack.
func TestSurfaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for rule, holds := range map[string]func(*testing.T, *world, string){
		"what is written is read, until the lease is over":          writtenIsRead,
		"a superseded holder's write is refused and leaves nothing": staleIsRefused,
		"a write that is given up half way leaves nothing":          halfIsNothing,
		"another answer than the product's is not made up":          cut,
	} {
		for _, name := range Surfaces {
			t.Run(name+": "+rule, func(t *testing.T) { t.Parallel(); holds(t, w, name) })
		}
	}
	t.Run("an object is written once", func(t *testing.T) { t.Parallel(); writtenOnce(t, w) })
	t.Run("a body is sent in three forms", func(t *testing.T) { t.Parallel(); threeForms(t, w) })
	t.Run("each of several leases is renewed", func(t *testing.T) { t.Parallel(); eachIsRenewed(t, w) })
	t.Run("a key has one lease", func(t *testing.T) { t.Parallel(); oneLeaseOfAKey(t, w) })
	t.Run("leases of PostgreSQL", func(t *testing.T) { t.Parallel(); postgresLeases(t) })
	t.Run("another's bytes are found", func(t *testing.T) { t.Parallel(); damageIsFound(t, w) })
	t.Run("what psql rolls back is not done", func(t *testing.T) { t.Parallel(); rolledBack(t, w) })
	t.Run("a killed Python is followed by another", func(t *testing.T) { t.Parallel(); pythonKilled(t, w) })
}

func writtenIsRead(t *testing.T, w *world, name string) {
	for seed := range uint64(3) {
		k := w.worker(t, name, seed)
		l := k.takes(t, w)
		want := map[string]string{}
		look := func(l *lease, i int) {
			for _, r := range l.all() {
				if saw, wrong, err := l.access.read(bounded(t), r.register); saw != want[r.register] || wrong != "" || err != nil {
					t.Fatalf("seed %d, turn %d: read %q, %q, %v; want %q", seed, i, saw, wrong, err, want[r.register])
				}
			}
		}
		for i := range 4 {
			look(l, i)
			if k.renew(bounded(t), l); l.deadline().IsZero() != (l.term.renew == nil) {
				t.Error("a lease that is renewed automatically can be renewed")
			}
			id := fmt.Sprintf("c1.1-%d", i)
			switch outcome, err := l.writes(bounded(t), id, k.dice, nil); {
			case outcome == history.Failed && err.Error() == "the upload was given up":
			case outcome == history.Refused && l.surface.once && i > 0:
			case outcome != history.Done:
				t.Fatalf("seed %d, turn %d: %s: %v", seed, i, outcome, err)
			default:
				for _, r := range l.all() {
					want[r.register] = strings.TrimSpace(id)
				}
			}
			look(l, i)
		}
		refusedAsHeld(t, k, l)
		w.revoke(t, l)
		if outcome, err := l.writes(bounded(t), "stale", k.dice, nil); outcome == history.Done {
			t.Errorf("seed %d: a stale write is answered %s: %v", seed, outcome, err)
		}
		l.forget()
		second := k.takesAgain(t, w)
		if first, then := l.grants[0].Token, second.grants[0].Token; first < 1 || then <= first {
			t.Errorf("seed %d: token %d after %d", seed, then, first)
		}
		if !l.surface.once { // its registers are others
			look(second, 5)
		}
		if !k.release(bounded(t), second) {
			t.Errorf("seed %d: not released", seed)
		}
	}
}

// refusedAsHeld asks for a lease's resources for another holder: the refusal names the lease.
func refusedAsHeld(t *testing.T, k *worker, l *lease) {
	t.Helper()
	var names []string
	for _, g := range l.grants {
		names = append(names, g.Resource)
	}
	_, op := k.acquire(bounded(t), l.surface, ask{resources: names, ttl: time.Second, try: true}, time.Minute)
	if op.Outcome != history.Refused || op.Code != "held" || op.HeldBy != int64(l.grants[0].Token) {
		t.Errorf("held by %d: %+v", l.grants[0].Token, op)
	}
}

// staleIsRefused lets an operator revoke the lease in the first of a write's pauses.
func staleIsRefused(t *testing.T, w *world, name string) {
	for seed := range uint64(5) {
		l := w.worker(t, name, seed).takes(t, w)
		taken := false
		outcome, err := l.writes(bounded(t), "stale", nil, func(context.Context) { // an early answer ends the pause's context
			if !taken {
				taken = true
				w.revoke(t, l)
			}
		})
		if !taken || outcome == history.Done || outcome == history.Unknown {
			t.Errorf("choice %d: paused %v: %s: %v", seed, taken, outcome, err)
		}
		w.agrees(t, l, "stale", history.Refused)
	}
}

// halfIsNothing abandons the write in its first pause. A write that has not begun is Failed, otherwise Unknown.
func halfIsNothing(t *testing.T, w *world, name string) {
	for seed := range uint64(5) {
		l := w.worker(t, name, seed).takes(t, w)
		ctx, giveUp := context.WithCancel(bounded(t))
		outcome, err := l.writes(ctx, "half", nil, func(context.Context) { giveUp() })
		if giveUp(); outcome == history.Done || outcome == history.Refused {
			t.Errorf("choice %d: %s: %v", seed, outcome, err)
		}
		w.revoke(t, l) // the write is too late from now on
		w.agrees(t, l, "half", history.Refused)
	}
}

// cut cuts the connection before the next request, or after it was answered, from a pause on. In a transaction nothing
// was committed before the second pause. What a library of S3 repeats counts once.
func cut(t *testing.T, w *world, name string) {
	for i := range 12 {
		first, after := 1+i%2, i/2%2 == 1
		ofS3 := strings.HasPrefix(name, "s3-")
		transaction := !ofS3 && name != "publish" && name != "http-sql"
		if !transaction && name != "publish" && first == 2 || ofS3 && !after {
			continue
		}
		own := w.behind(t)
		l := own.worker(t, name, uint64(i)).takes(t, w)
		armed, cuts := 0, 0
		count := func() {
			cuts += armed
			for _, r := range own.relays {
				cuts -= r.Pending()
			}
		}
		pauses := 0
		outcome, err := l.writes(bounded(t), "cut", nil, func(context.Context) {
			if pauses++; pauses < first || name == "publish" && pauses != 5 { // its others come before the last statement
				return
			}
			count()
			armed = len(own.relays)
			for _, r := range own.relays {
				if after {
					r.CutAfter(1)
				} else {
					r.CutBefore(1)
				}
			}
		})
		count()
		want := []history.Outcome{history.Unknown}
		switch {
		case transaction && first == 1:
			want = []history.Outcome{history.Failed}
		case ofS3 && (err == nil || err.Error() != "the upload was given up"):
			want = append(want, history.Done)
		case ofS3:
			want = []history.Outcome{history.Failed}
		case name == "publish": // it is looked up, or run again
			want = append(want, history.Done, history.Failed)
		}
		if cuts == 0 || !slices.Contains(want, outcome) {
			t.Errorf("choice %d: %d cuts, from pause %d of %d, after the answer %v: %s: %v", i, cuts, first, pauses, after, outcome, err)
		}
		if outcome == history.Unknown && !ofS3 { // a lost answer does not leave open what was done
			outcome = map[bool]history.Outcome{false: history.Failed, true: history.Done}[after]
		}
		w.agrees(t, l, "cut", outcome)
	}
}

// agrees compares the writer's outcome with the effects.
func (w *world) agrees(t *testing.T, l *lease, id string, outcome history.Outcome) {
	t.Helper()
	for _, r := range l.all() {
		values := w.values(t, r.register)
		if values != "" && values != id || outcome != history.Unknown && (values == id) != (outcome == history.Done) {
			t.Errorf("the outcome is %s, and %s has had the values %q", outcome, r.register, values)
		}
	}
}

// writtenOnce writes to one object under two leases: the turns are of three tokens.
func writtenOnce(t *testing.T, w *world) {
	k := w.worker(t, "s3-once", 1)
	first := map[string]string{}
	l := k.takes(t, w)
	for i := range 6 {
		register, id := l.all()[0].register, fmt.Sprint("o", i)
		outcome, err := l.writes(bounded(t), id, nil, nil)
		if want := map[bool]history.Outcome{true: history.Refused, false: history.Done}[first[register] != ""]; outcome != want {
			t.Errorf("write %d of %s: %s: %v", i, register, outcome, err)
		}
		if first[register] == "" {
			first[register] = id
		}
		if saw, wrong, err := l.access.read(bounded(t), register); saw != first[register] || wrong != "" || err != nil {
			t.Errorf("read %q, %q, %v", saw, wrong, err)
		}
		k.release(bounded(t), l)
		l = k.takesAgain(t, w)
	}
	if len(first) < 2 || len(first) > 3 {
		t.Errorf("%d objects for six leases", len(first))
	}
}

// oneLeaseOfAKey renews by asking again, and then asks for a lease that is over.
func oneLeaseOfAKey(t *testing.T, w *world) {
	k := w.worker(t, "http-repeat", 1)
	l := k.takes(t, w)
	for range 4 {
		before := l.deadline()
		if _, err := l.term.renew(bounded(t), 0); err != nil || !l.deadline().After(before) {
			t.Errorf("%v: until %v, and %v before", err, l.deadline(), before)
		}
	}
	w.revoke(t, l)
	k.release(bounded(t), k.takesAgain(t, w))
	k.renew(bounded(t), l)
	k.renew(bounded(t), l) // the other lease is recorded once
	ops, err := (&history.Reader{Path: k.cfg.History}).Next()
	must(t, err)
	renewal, other, last := ops[len(ops)-4], ops[len(ops)-3], ops[len(ops)-1]
	if last.Action != history.Renew || last.Code != "lease_lost" {
		t.Errorf("%+v", last)
	}
	if renewal.Action != history.Renew || renewal.Outcome != history.Refused || renewal.Code != "lease_lost" {
		t.Errorf("%+v", renewal)
	}
	if other.Action != history.Acquire || other.Outcome != history.Done || other.Token <= int64(l.grants[0].Token)+1 || other.Until == 0 {
		t.Errorf("%+v", other)
	}
}

// eachIsRenewed renews several leases, of which one is lost.
func eachIsRenewed(t *testing.T, w *world) {
	k := w.worker(t, "http-all", 1)
	k.resources = []string{w.resource(t), w.resource(t), w.resource(t)}
	l := k.takesAgain(t, w)
	before := until(l.deadline())
	w.revoke(t, &lease{holding: holding{term: &term{grants: l.grants[1:2]}}})
	k.renew(bounded(t), l)
	ops, err := (&history.Reader{Path: k.cfg.History}).Next()
	must(t, err)
	ops = slices.DeleteFunc(history.Last(ops), func(op history.Op) bool { return op.Action != history.Renew })
	for i, op := range ops {
		lost := op.Outcome == history.Refused && op.Code == "lease_lost" && op.Until == 0
		if op.Token != int64(l.grants[i].Token) || lost != (i == 1) || !lost && (op.Outcome != history.Done || op.Until <= before) {
			t.Errorf("%+v", op)
		}
	}
	if len(ops) != 3 {
		t.Errorf("%d renewals of three leases", len(ops))
	}
}

// postgresLeases uses the library without Redis, and no gateway.
func postgresLeases(t *testing.T) {
	pg := judged(t, stacktest.New(t))
	admin, err := pg.Pool(t.Context())
	must(t, err)
	w := &world{admin: admin, cfg: Config{
		Workers: 1, MaxTTL: stackTTL, WriterURL: pg.As(stack.Writer), FenceURL: pg.As(stack.Gateway), Gateways: []Gateway{{API: "http://127.0.0.1:1"}},
	}}
	k := w.worker(t, "library", 1)
	k.resources = []string{"robust/r0-pg"}
	l := k.takesAgain(t, w)
	w.row(t, l.grants[0])
	refusedAsHeld(t, k, l)
	if !k.read(bounded(t), l) || !k.write(bounded(t), l, &pause{w: k}) {
		t.Error("not written")
	}
	k.renew(bounded(t), l)
	if !k.release(bounded(t), l) {
		t.Error("not released")
	}
	second := k.takesAgain(t, w)
	if outcome, err := l.writes(bounded(t), "stale", nil, nil); outcome != history.Refused {
		t.Errorf("%s: %v", outcome, err)
	}
	if !k.read(bounded(t), second) || second.known["row:robust/r0-pg"] != l.wrote["row:robust/r0-pg"] {
		t.Errorf("read %v, and %v was written", second.known, l.wrote)
	}
}

// endSession terminates a session, and endStatement cancels a statement: a pause within a transaction, if there is one.
const (
	endSession   = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename <> current_user ORDER BY random() LIMIT 1`
	endStatement = `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename <> current_user AND state = 'active'
		ORDER BY query NOT LIKE '%pg_sleep%', random() LIMIT 1`
)

// The work is the clock of the faults, so that a slow machine has no more of them for each write than a fast one.
func TestWhatAClientRecordsIsWhatHappenedWhileSessionsAreEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.cfg
	cfg.Workers, cfg.MaxTTL, cfg.Surfaces = 6, 2*time.Second, Surfaces
	cfg.Dir, cfg.History = t.TempDir(), filepath.Join(t.TempDir(), "history")
	order := Order{Do: Work, Round: 1}
	for range 8 {
		order.Resources = append(order.Resources, w.resource(t))
	}
	p, err := start(cfg, nil)
	must(t, err)
	p.obey(t.Context(), order)
	wrote, writes := map[string]int{}, 0
	recorded, look := &history.Reader{Path: cfg.History}, time.NewTicker(20*time.Millisecond)
	defer look.Stop()
	var all []history.Op
	for writes < 150 || len(wrote) < len(Surfaces) {
		<-look.C
		more, err := recorded.Next()
		must(t, err)
		all = append(all, more...)
		for _, op := range more {
			if op.Action != history.Write || op.Outcome != history.Done {
				continue
			}
			wrote[op.Surface]++
			writes++
			_, err := w.admin.Exec(t.Context(), []string{endSession, endStatement}[writes%2])
			must(t, err)
		}
	}
	t.Logf("written: %v", wrote)
	t.Logf("%+v", p.obey(t.Context(), Order{Do: Rest}))
	must(t, p.close())
	more, err := recorded.Next()
	must(t, err)
	w.agree(t, append(all, more...))
}

// agree compares a history with the effects.
func (w *world) agree(t *testing.T, ops []history.Op) {
	t.Helper()
	type effect struct {
		Register, Value, Overwrote string
		Token                      int64
	}
	rows, err := w.admin.Query(t.Context(), "SELECT register, value, overwrote, token FROM judged.effects")
	must(t, err)
	effects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[effect])
	must(t, err)
	done := map[[2]string]effect{}
	for _, e := range effects {
		if _, twice := done[[2]string{e.Register, e.Value}]; twice {
			t.Errorf("%+v was done twice", e)
		}
		done[[2]string{e.Register, e.Value}] = e
	}
	for _, op := range history.Last(ops) {
		if op.Wrong != "" {
			t.Errorf("%+v", op)
		}
		for register, based := range op.Based {
			e, ok := done[[2]string{register, op.ID}]
			switch {
			case ok && (e.Overwrote != based || e.Token != op.Token):
				t.Errorf("%+v was done on %q under %d", op, e.Overwrote, e.Token)
			case ok != (op.Outcome == history.Done) && op.Outcome != history.Unknown:
				t.Errorf("%s: done is %v of %+v", register, ok, op)
			}
		}
	}
}

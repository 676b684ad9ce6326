package fault

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/robustness/history"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// well fails the test if a part of the world is not in its normal state.
func well(t *testing.T, w *world) {
	t.Helper()
	if off := w.state(); len(off) > 0 {
		t.Errorf("still off: %v", off)
	}
	for _, r := range w.Links() {
		if err := carries(r); err != nil || r.Pending() > 0 {
			t.Errorf("%s→%s: %d cuts to come, %v", r.From, r.To, r.Pending(), err)
		}
	}
}

// play plays a plan in a world, in which a call may be broken.
func play(ctx context.Context, w *world, broken string, plan ...Event) Result {
	w.broken = broken
	return Play(ctx, plan, w, Scene{Round: 1, Resources: []string{"robust/r1-1", "robust/r1-2"}, Log: w})
}

func TestEveryFaultHealsItselfAtItsEndAndWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	for _, f := range All {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(4) {
				w := newWorld(t)
				r := play(t.Context(), w, "", Event{Fault: f.Name, Seed: seed, For: 20 * ms})
				well(t, w)
				if f.Name == "pg-terminate" { // there is no server for a login
					if len(r.Undone) != 1 || !errors.Is(r.Undone[0], errBroken) {
						t.Errorf("a fault that could not be done: %v", r.Undone)
					}
				} else if r.Counts[f.Name] != 1 || len(r.Undone)+len(r.Found) > 0 {
					t.Errorf("seed %d: ran %d times; %v; %v", seed, r.Counts[f.Name], r.Undone, r.Found)
				}
				if w.called() == "" && !is(f.Name, "net") {
					t.Error("it did nothing")
				}
			}
			w := newWorld(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				<-w.touched
				cancel()
			}()
			r := play(ctx, w, "", Event{Fault: f.Name, Seed: 7, For: time.Hour}, Event{At: time.Hour, Fault: f.Name})
			if len(r.Found) > 0 || r.Counts[f.Name] > 1 {
				t.Errorf("at the context's end: ran %d times; %v", r.Counts[f.Name], r.Found)
			}
			well(t, w)
		})
	}
}

func TestAPlanIsPlayedAndHealed(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		w := newWorld(t)
		plan, err := Plan(Wish{Seed: seed, Length: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for i := range plan { // it plays a minute in half a second
			plan[i].At /= 120
			plan[i].For /= 120
		}
		r := play(t.Context(), w, "", plan...)
		well(t, w)
		n := len(r.Undone)
		for _, count := range r.Counts {
			n += count
		}
		if n != len(plan) || len(r.Found) > 0 {
			t.Errorf("seed %d: %d of %d faults ran; %v", seed, n, len(plan), r.Found)
		}
		for _, undone := range r.Undone {
			if !errors.Is(undone, errBroken) {
				t.Errorf("seed %d: %v", seed, undone)
			}
		}
	}
}

func TestSpansSayWhomAFaultStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.clients = w.clients[1:2]
	before := history.Now()
	r := play(t.Context(), w, "", Event{Fault: "client-stop", For: 30 * ms},
		Event{At: 60 * ms, Fault: "redis-freeze", For: ms}, Event{At: 60 * ms, Fault: "busy", For: ms})
	whom := map[int]history.Span{}
	for _, span := range r.Spans {
		if span.From < before || span.To < span.From || span.To > history.Now() {
			t.Errorf("%+v is not of this test", span)
		}
		whom[span.Client] = span
	}
	if stop := whom[2]; stop.What != "client-stop" || time.Duration(stop.To-stop.From) < 30*time.Millisecond {
		t.Errorf("client 2 was stopped for 30ms: %+v", stop)
	}
	if whom[-1].What != "busy" || len(whom) != 3 || len(r.Spans) != 5 {
		t.Errorf("a span for client 2, one for everybody, one for each fault: %+v", r.Spans)
	}
}

func TestTwoFaultsNeverStopTheSameProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.clients = w.clients[:1]
	var plan []Event
	for seed := range uint64(3) {
		for _, name := range []string{"client-stop", "client-kill", "client-stutter", "pg-crash", "pg-freeze"} {
			plan = append(plan, Event{Fault: name, Seed: seed, For: 5 * ms})
		}
	}
	if r := play(t.Context(), w, "", plan...); len(r.Undone)+len(r.Found) > 0 { // the world refuses to stop a stopped part
		t.Errorf("%v; %v", r.Undone, r.Found)
	}
	well(t, w)
}

func TestWhatCouldNotBeDoneOrHealedIsReported(t *testing.T) {
	t.Parallel()
	for broken, name := range map[string]string{
		"primary freeze": "pg-freeze", "disk fill": "disk-full", "machine spin": "busy", "resource revoke": "revoke",
		"tool objects verify": "verify", "tool objects sweep": "sweep", "session list": "session-end", "bucket rule": "rules", "blobs kill": "blobs-kill",
		"blobs freeze": "blobs-freeze", "gateway-1 stop": "rolling-gateways",
	} {
		w := newWorld(t)
		r := play(t.Context(), w, broken, Event{Fault: name, For: ms})
		if len(r.Undone) != 1 || !errors.Is(r.Undone[0], ErrNotDone) || r.Counts[name] != 0 {
			t.Errorf("%s where %s fails: %v; %v", name, broken, r.Undone, r.Counts)
		}
		w.broken = ""
		well(t, w)
	}
	for broken, name := range map[string]string{
		"redis-1 restart 0": "rolling-redis", "client-1 restart": "client-kill", "primary start": "pg-crash",
		"primary thaw": "pg-freeze", "postgres failover": "pg-failover", "disk free": "disk-full",
		"primary stop": "rolling-pg", "standby thaw": "pg-standby-freeze", "blobs start": "blobs-kill", "blobs thaw": "blobs-freeze",
	} {
		w := newWorld(t)
		w.clients = w.clients[:1]
		r := play(t.Context(), w, broken, Event{Fault: name, For: ms})
		if len(r.Found) != 1 || !errors.Is(r.Found[0], ErrNotHealed) || !errors.Is(r.Found[0], errBroken) {
			t.Errorf("%s where %s fails: %v", name, broken, r.Found)
		}
	}
	w := newWorld(t)
	w.disks, w.blobs, w.nodes = nil, nil, nil
	var plan []Event
	for _, name := range []string{"disk-full", "blobs-kill", "blobs-freeze", "redis-kill", "redis-clock", "rolling-redis", "nothing"} {
		plan = append(plan, Event{Fault: name})
	}
	if r := play(t.Context(), w, "", plan...); len(r.Undone) != len(plan) {
		t.Errorf("no disk, no service, no nodes, and no such fault: %v", r.Undone)
	}
}

func TestANodeWithoutAnOlderCopyComesBackWithItsOwnData(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.nodes = w.nodes[:1]
	r := play(t.Context(), w, "redis-1 restart 1", Event{Fault: "redis-older", For: ms})
	if len(r.Undone) != 1 || !strings.HasSuffix(w.called(), "redis-1 restart 0") {
		t.Errorf("%v; %s", r.Undone, w.called())
	}
	well(t, w)
}

// One node is no quorum of several, but of one.
func TestOnlyOneNodeOfARoundJumpsFar(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{3, 1} {
		farthest := map[string]time.Duration{}
		for seed := range uint64(80) {
			w := newWorld(t)
			w.nodes = w.nodes[:nodes]
			Play(t.Context(), []Event{{Fault: "redis-clock", Seed: seed}}, w, Scene{Round: 4, Log: observe(func(line string) {
				for _, name := range []string{"redis-1", "redis-2", "redis-3"} {
					_, by, drawn := strings.Cut(line, " by ")
					if d, err := time.ParseDuration(strings.TrimSpace(by)); drawn && err == nil && strings.Contains(line, name) {
						farthest[name] = max(farthest[name], d.Abs())
					}
				}
			})})
		}
		if farthest["redis-1"] > near || farthest["redis-3"] > near || (farthest["redis-2"] < time.Hour) != (nodes == 1) {
			t.Errorf("in round 4 the second of three nodes may jump far: %v", farthest)
		}
	}
}

// observe is called with each line.
type observe func(line string)

func (o observe) Write(line []byte) (int, error) {
	o(string(line))
	return len(line), nil
}

func TestARevocationIsRecordedBeforeAndAfter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "operator")
	writer, err := history.Append(path)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	s := Scene{Round: 1, Resources: []string{"robust/r1-1", "robust/r1-2"}, Operator: writer}
	Play(t.Context(), []Event{{Fault: "revoke", For: ms}}, w, s)
	w.broken = "resource revoke"
	Play(t.Context(), []Event{{Fault: "revoke", Seed: 1, For: ms}}, w, s)
	ops, err := (&history.Reader{Path: path}).Next()
	if err != nil {
		t.Fatal(err)
	}
	last := history.Last(ops)
	if len(ops) < 6 || len(ops) != 2*len(last) || ops[0].Outcome != history.Begun || ops[0].End != 0 {
		t.Fatalf("one call that is done and one at each of two gateways that fails, each twice: %+v", ops)
	}
	if op := last[0]; op.Outcome != history.Done || op.Token != 77 || op.Action != history.Revoke || op.End < op.Begin ||
		op.Limit <= op.Begin || !strings.HasPrefix(op.Resource, "robust/r1-") {
		t.Errorf("done: %+v", op)
	}
	if op := last[len(last)-1]; op.Outcome != history.Unknown || op.Error == "" {
		t.Errorf("a server's failure leaves open what was done: %+v", op)
	}
}

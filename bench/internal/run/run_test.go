package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// measure measures in a bubble, for 100 ms and two rounds, and returns also what was printed, and the error.
func measure(t *testing.T, c Cell, contenders ...Contender) (b *Bench, results Results, printed string, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		out := &bytes.Buffer{}
		b = &Bench{Settings: Settings{Slice: 100 * time.Millisecond, Rounds: 2}, Subject: "subject", Out: out}
		defer Catch(&err)
		defer func() { printed = out.String() }()
		results = b.Measure(t.Context(), c, contenders...)
	})
	return b, results, printed, err
}

// taking makes a contender whose operations take a time.
func taking(name string, d time.Duration) Contender {
	return Contender{Name: name, Op: func(context.Context, int, int64) error { time.Sleep(d); return nil }}
}

func TestRatesRatiosAndQuantilesAreThoseOfTheOperations(t *testing.T) {
	t.Parallel()
	slow, counted := taking("slow", 20*time.Millisecond), 0.0
	slow.Meters = []Meter{{Name: "calls", Read: func(context.Context) float64 { return counted }}}
	op := slow.Op
	slow.Op = func(ctx context.Context, worker int, n int64) error { counted += 3; return op(ctx, worker, n) }
	b, results, printed, err := measure(t, Cell{Name: "cell", Workers: 1}, taking("quick", 5*time.Millisecond), slow)
	if err != nil {
		t.Fatal(err)
	}
	if r := results["slow"]; r.Rate() != 50 || r.Quantile(1) != 20*time.Millisecond || r.Meter("calls") != 3 || len(r.Rates) != 2 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(printed, "0.25 (0.25-0.25) of quick  3 calls") {
		t.Error(printed)
	}
	b.AtLeast("subject.quick", results, "quick", "slow", 4.5)
	b.Within("subject.time", results["slow"].Quantile(1), time.Second)
	b.AtLeast("subject.none", results, "quick", "none", 1)
	out := &bytes.Buffer{}
	missed, compulsory := Table(out, b.Goals)
	if missed != 1 || compulsory != 0 || !strings.Contains(out.String(), "slow:50.0/s  4.000  >=4.5  no") || strings.Contains(out.String(), "none") {
		t.Errorf("%d missed, %d compulsory: %s", missed, compulsory, out)
	}
}

func TestAFailedOperationFailsTheBenchmark(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	failing := Contender{Name: "failing", Op: func(_ context.Context, _ int, n int64) error {
		time.Sleep(time.Millisecond)
		if n%40 == 0 {
			return broken
		}
		return nil
	}}
	if _, _, _, err := measure(t, Cell{Name: "cell", Workers: 3}, taking("well", time.Millisecond), failing); !errors.Is(err, broken) {
		t.Error(err)
	}
	failing.MayFail = true
	_, results, printed, err := measure(t, Cell{Name: "cell", Workers: 3}, failing)
	if err != nil || results["failing"].Failed["broken"] == 0 || !strings.Contains(printed, "failed: broken") {
		t.Error(printed, err)
	}
}

func TestAHungOperationIsAFailureAndNoTime(t *testing.T) {
	t.Parallel()
	hanging := Contender{Name: "hanging", MayFail: true, Op: func(ctx context.Context, worker int, _ int64) error {
		if worker == 0 {
			<-ctx.Done()
			return ctx.Err()
		}
		time.Sleep(10 * time.Millisecond)
		return nil
	}}
	c := Cell{Name: "cell", Workers: 2, Grace: time.Minute, Cold: true}
	_, results, _, err := measure(t, c, hanging)
	if r := results["hanging"]; err != nil || r.Rate() != 100 || r.Failed[context.DeadlineExceeded.Error()] != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	hanging.MayFail = false
	if _, _, _, err := measure(t, c, hanging); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestAPeerThatHardlyWorksIsNoPeer(t *testing.T) {
	t.Parallel()
	ours := taking("ours", time.Millisecond)
	for name, every := range map[string]int64{"hardly": 10, "never": 1} {
		peer := Contender{Name: name, MayFail: true, Op: func(_ context.Context, _ int, n int64) error {
			time.Sleep(time.Millisecond)
			if n%every == 0 {
				return errors.New("broken")
			}
			return nil
		}}
		b, results, _, err := measure(t, Cell{Name: "cell", Workers: 1}, ours, peer)
		if err != nil {
			t.Fatal(err)
		}
		compare := func(f func()) (err error) {
			defer Catch(&err)
			f()
			return nil
		}
		if err := compare(func() { b.AtLeast("goal", results, "ours", name, 1) }); err == nil || len(b.Goals) > 0 {
			t.Errorf("%s: %v, %v", name, err, b.Goals)
		}
		err = compare(func() { b.Quicker("goal", time.Second, name, results[name].Quantile(0.5), 1) })
		if (err != nil) != (name == "never") {
			t.Errorf("%s, its time: %v", name, err)
		}
	}
}

func TestAfterComesAfterAFailure(t *testing.T) {
	t.Parallel()
	broken, after := errors.New("broken"), 0
	_, results, _, err := measure(t, Cell{Name: "cell", Workers: 1, Cold: true}, Contender{
		Name: "failing", Op: func(context.Context, int, int64) error { return broken }, After: func(context.Context, int) { after++ },
	})
	if !errors.Is(err, broken) || after != 1 || results != nil {
		t.Errorf("%v; After came %d times; %v", err, after, results)
	}
}

func TestOnlyChoosesAndIsHeldToIt(t *testing.T) {
	t.Parallel()
	b := &Bench{Settings: Settings{Only: []string{"two", "four"}}}
	var names []string
	for _, one := range b.choose([]Contender{{Name: "one"}, {Name: "two"}, {Name: "three"}}) {
		names = append(names, one.Name)
	}
	if fmt.Sprint(names, b.Missing(), b.choose([]Contender{{Name: "one"}})) != "[one two] [four] []" {
		t.Error(names, b.Missing())
	}
}

func TestContendersTakeTurnsInAllOrders(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for round := range 6 {
		seen[fmt.Sprint(order(3, round))] = true
	}
	if len(seen) != 6 {
		t.Error(seen)
	}
}

package client

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// play runs a client on the memory for a time, and returns its records. atRest is the number of records when it
// received the order to rest.
func play(t *testing.T, seed uint64, d time.Duration) (m *memory, ops []history.Op, atRest int, rested Report) {
	t.Helper()
	m = &memory{dice: newDice(seed, 7), at: map[string]*shelf{}}
	cfg := Config{
		Number: 3, Seed: seed, History: filepath.Join(t.TempDir(), "history"), Workers: 4, MaxTTL: 2 * time.Second,
		Gateways: []Gateway{{API: "http://127.0.0.1:1"}},
	}
	p, err := start(cfg, []*surface{m.surface()})
	if err != nil {
		t.Fatal(err)
	}
	p.obey(t.Context(), Order{Do: Work, Round: 5, Resources: []string{"a", "b", "c"}})
	timer := time.NewTimer(d)
	<-timer.C
	synctest.Wait()
	recorded := &history.Reader{Path: cfg.History}
	worked, err := recorded.Next()
	if err != nil {
		t.Fatal(err)
	}
	rested = p.obey(t.Context(), Order{Do: Rest})
	must(t, p.close())
	m.late.Wait()
	more, err := recorded.Next()
	if err != nil {
		t.Fatal(err)
	}
	return m, append(worked, more...), len(worked), rested
}

func TestAWriteIsBasedOnWhatItOverwrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(5) {
			m, ops, _, _ := play(t, seed, time.Minute)
			writes := map[string]history.Op{}
			for _, op := range history.Last(ops) {
				writes[op.ID] = op
			}
			for _, e := range m.effects {
				if based, ok := writes[e.value].Based["row:"+e.resource]; !ok || based != e.overwrote {
					t.Fatalf("seed %d: %s overwrote %q and was based on %q", seed, e.value, e.overwrote, based)
				}
			}
			if len(m.effects) < 50 {
				t.Errorf("seed %d: %d effects", seed, len(m.effects))
			}
		}
	})
}

func TestEveryCallIsRecordedBeforeAndAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, ops, _, r := play(t, 1, time.Minute)
		begun := map[string]bool{}
		for _, op := range ops {
			switch {
			case op.Client != 3 || op.Round != 5 || op.Surface != "memory" || op.Limit <= op.Begin:
				t.Fatalf("%+v", op)
			case op.Outcome == history.Begun:
				begun[op.ID] = true
			case op.Action != history.Read && !begun[op.ID]:
				t.Fatalf("not begun: %+v", op)
			case op.End < op.Begin || !strings.HasPrefix(op.ID, "c3."):
				t.Fatalf("%+v", op)
			case strings.Contains(op.Error, "0123456789abcdef"):
				t.Fatalf("a secret: %+v", op)
			}
			if op.Outcome != history.Begun {
				delete(begun, op.ID)
			}
		}
		if len(begun) > 0 {
			t.Errorf("not answered at rest: %v", begun)
		}
		if r.Done != Rest || r.Calls == 0 || r.Counts["memory write done"] == 0 || r.Error != "" {
			t.Errorf("%+v", r)
		}
	})
}

func TestZombiesWriteUnderOldTokensAndOnceMoreAtRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, ops, atRest, _ := play(t, 2, time.Minute)
		newest, again, stale, old, last := map[string]int64{}, map[string]int{}, 0, 0, 0
		for i, op := range ops {
			switch {
			case op.Outcome == history.Done && op.Action == history.Acquire:
				if op.Token <= newest[op.Resource] {
					t.Errorf("%+v after token %d", op, newest[op.Resource])
				}
				newest[op.Resource] = op.Token
			case op.Action == history.Write && op.Outcome == history.Refused:
				again[fmt.Sprint(op.Resource, op.Token)]++
				if op.Token < newest[op.Resource] {
					stale++
				}
				switch {
				case op.Token+4 > newest[op.Resource]:
				case i < atRest:
					old++
				default:
					last++
				}
			}
		}
		several := 0
		for _, n := range again {
			if n > 1 {
				several++
			}
		}
		if stale < 10 || several < 3 {
			t.Errorf("%d stale writes were refused, %d leases went on after a refusal", stale, several)
		}
		if old < 10 || last == 0 {
			t.Errorf("holders of long ago wrote %d times, and %d times at rest", old, last)
		}
	})
}

func TestALeaseIsGivenBackWhileItsWriteIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, ops, _, _ := play(t, 3, time.Minute)
		released, within, later := map[string]history.Op{}, 0, 0
		for _, op := range ops {
			if op.Action == history.Release && op.Outcome == history.Done {
				released[fmt.Sprint(op.Resource, op.Token)] = op
			}
		}
		for _, op := range history.Last(ops) {
			r, ok := released[fmt.Sprint(op.Resource, op.Token)]
			switch {
			case !ok || op.Action != history.Write:
			case op.Begin > r.End:
				later++
			case op.End > r.End:
				within++
			}
		}
		if within < 10 || later > 0 {
			t.Errorf("%d writes were under way when their lease was given back, %d began afterwards", within, later)
		}
	})
}

func TestALeaseIsRenewedWhileItsWriteIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, ops, _, _ := play(t, 4, time.Minute)
		renewed := map[string][]history.Op{}
		for _, op := range ops {
			if op.Action == history.Renew && op.Outcome == history.Done {
				renewed[fmt.Sprint(op.Resource, op.Token)] = append(renewed[fmt.Sprint(op.Resource, op.Token)], op)
			}
		}
		within := 0
		for _, op := range history.Last(ops) {
			for _, r := range renewed[fmt.Sprint(op.Resource, op.Token)] {
				if op.Action == history.Write && op.Begin < r.Begin && r.End < op.End {
					within++
				}
			}
		}
		if within < 10 {
			t.Errorf("%d renewals while a write was under way", within)
		}
	})
}

func TestPausesLieAroundTheEndOfALease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &worker{round: &round{stop: make(chan struct{})}, dice: newDice(1, 1)}
		var none, before, around, after int
		for range 1000 {
			switch d := w.plan(time.Now().Add(time.Second)).left(); {
			case d == 0:
				none++
			case d < 900*time.Millisecond:
				before++
			case d < 1025*time.Millisecond:
				around++
			default:
				after++
			}
		}
		if none < 200 || before < 50 || around < 100 || after < 100 {
			t.Errorf("%d none, %d before, %d around, %d after the end", none, before, around, after)
		}
		p := &pause{w: w, until: time.Now().Add(time.Second)}
		began := time.Now()
		for range 20 {
			p.take(t.Context())
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("a pause of a second took %v", took)
		}
		p.until = time.Now().Add(time.Minute)
		naps := 0
		for range 20 {
			if p.nap() > 0 {
				naps++
			}
		}
		if naps != 1 {
			t.Errorf("a pause was made %d times", naps)
		}
		p.until = time.Now().Add(time.Minute)
		close(w.stop)
		for range 20 {
			p.take(t.Context())
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("a pause outlasts the rest: %v", took)
		}
	})
}

func TestAClientObeysLineByLine(t *testing.T) {
	t.Parallel()
	cfg := Config{
		Number: 1, Workers: 1, MaxTTL: time.Second, Surfaces: []string{"http-direct"}, History: filepath.Join(t.TempDir(), "history"),
		Gateways: []Gateway{{API: "http://127.0.0.1:1"}}, WriterURL: "postgres://nobody@127.0.0.1:1/none",
	}
	toClient, orders := io.Pipe()
	reports, fromClient := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), toClient, fromClient) }()
	say, hear := json.NewEncoder(orders), json.NewDecoder(reports)
	if err := say.Encode(cfg); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		order Order
		fails bool
	}{
		{Order{Do: Rest}, false},
		{Order{Do: Work, Round: 1, Resources: []string{"robust/r1-1"}}, false},
		{Order{Do: Rest}, false},
		{Order{Do: "dance"}, true},
		{Order{Do: Work}, true},
	} {
		if err := say.Encode(c.order); err != nil {
			t.Fatal(err)
		}
		var r Report
		if err := hear.Decode(&r); err != nil || r.Done != c.order.Do || (r.Error != "") != c.fails {
			t.Errorf("%+v: %+v, %v", c.order, r, err)
		}
	}
	_ = orders.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

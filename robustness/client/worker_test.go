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

// play runs a client on the memory for a minute, and returns its records. atRest is the number of records when it
// received the order to rest.
func play(t *testing.T, seed uint64) (m *memory, ops []history.Op, atRest int) {
	t.Helper()
	m = &memory{dice: newDice(seed, 7), at: map[string]*shelf{}}
	cfg := Config{
		Number: 3, Seed: seed, History: filepath.Join(t.TempDir(), "history"), Workers: 4, MaxTTL: 2 * time.Second,
		Gateways: []Gateway{{API: "http://127.0.0.1:1"}},
	}
	p, err := start(cfg, []*surface{{name: "memory", registers: row, acquire: m.acquire}})
	must(t, err)
	p.obey(t.Context(), Order{Do: Work, Round: 5, Resources: []string{"a", "b", "c"}})
	<-time.NewTimer(time.Minute).C
	synctest.Wait()
	recorded := &history.Reader{Path: cfg.History}
	worked, err := recorded.Next()
	must(t, err)
	r := p.obey(t.Context(), Order{Do: Rest})
	if r.Done != Rest || r.Calls == 0 || r.Counts["memory write done"] == 0 || r.Error != "" {
		t.Errorf("%+v", r)
	}
	must(t, p.close())
	m.late.Wait()
	more, err := recorded.Next()
	must(t, err)
	return m, append(worked, more...), len(worked)
}

func TestAWriteIsBasedOnWhatItOverwrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(5) {
			m, ops, _ := play(t, seed)
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
		_, ops, _ := play(t, 1)
		begun := map[string]bool{}
		for _, op := range ops {
			switch {
			case op.Client != 3 || op.Round != 5 || op.Surface != "memory" || op.Limit <= op.Begin || strings.Contains(op.Error, aSeal):
				t.Fatalf("%+v", op)
			case op.Outcome == history.Begun:
				begun[op.ID] = true
				continue
			case op.Action != history.Read && !begun[op.ID] || op.End < op.Begin || !strings.HasPrefix(op.ID, "c3."):
				t.Fatalf("%+v", op)
			}
			delete(begun, op.ID)
		}
		if len(begun) > 0 {
			t.Errorf("not answered at rest: %v", begun)
		}
	})
}

// Programs write under old tokens, several times and once more at rest; they release and renew leases during a write.
func TestProgramsGoOnTooLong(t *testing.T) {
	t.Parallel()
	n := map[string]int{}
	for seed := range uint64(4) { // one minute alone may lack what is rare
		synctest.Test(t, func(t *testing.T) { countsWhatGoesOn(t, seed, n) })
	}
	for what, least := range map[string]int{
		"leases that went on after a refusal": 3, "stale writes": 10, "writes of long ago's holders": 10,
		"writes of theirs at rest": 1, "releases during a write": 10, "renewals during a write": 10,
	} {
		if n[what] < least {
			t.Errorf("%d %s; at least %d are expected", n[what], what, least)
		}
	}
}

func countsWhatGoesOn(t *testing.T, seed uint64, n map[string]int) {
	t.Helper()
	_, ops, atRest := play(t, seed)
	lease := func(op history.Op) string { return fmt.Sprint(op.Resource, op.Token) }
	newest, again, released, renewed := map[string]int64{}, map[string]int{}, map[string]history.Op{}, map[string][]history.Op{}
	for i, op := range ops {
		switch {
		case op.Outcome == history.Done && op.Action == history.Acquire:
			if op.Token <= newest[op.Resource] {
				t.Errorf("%+v after token %d", op, newest[op.Resource])
			}
			newest[op.Resource] = op.Token
		case op.Outcome == history.Done && op.Action == history.Release:
			released[lease(op)] = op
		case op.Outcome == history.Done && op.Action == history.Renew:
			renewed[lease(op)] = append(renewed[lease(op)], op)
		case op.Action == history.Write && op.Outcome == history.Refused:
			if again[lease(op)]++; again[lease(op)] == 2 {
				n["leases that went on after a refusal"]++
			}
			if op.Token < newest[op.Resource] {
				n["stale writes"]++
			}
			if old := op.Token+4 <= newest[op.Resource]; old && i < atRest {
				n["writes of long ago's holders"]++
			} else if old {
				n["writes of theirs at rest"]++
			}
		}
	}
	for _, op := range history.Last(ops) {
		if op.Action != history.Write {
			continue
		}
		if r, ok := released[lease(op)]; ok && op.Begin > r.End {
			t.Errorf("%+v began after its lease was given back", op)
		} else if ok && op.End > r.End {
			n["releases during a write"]++
		}
		for _, r := range renewed[lease(op)] {
			if op.Begin < r.Begin && r.End < op.End {
				n["renewals during a write"]++
			}
		}
	}
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
		began, p := time.Now(), &pause{w: w}
		for i, naps := 0, 0; i < 3; i++ { // a pause is made once, in this program or another, and not at rest
			p.until = time.Now().Add(time.Second)
			for range 20 {
				if i == 1 && p.nap() > 0 {
					naps++
				} else if i != 1 {
					p.take(t.Context())
				}
			}
			if took := time.Since(began); took != time.Second || i == 1 && naps != 1 {
				t.Errorf("part %d: %v, and %d naps", i, took, naps)
			}
			if i == 1 {
				close(w.stop)
			}
		}
	})
}

func TestAClientObeysLineByLine(t *testing.T) {
	t.Parallel()
	toClient, orders := io.Pipe()
	reports, fromClient := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), toClient, fromClient) }()
	say, answers := json.NewEncoder(orders), json.NewDecoder(reports)
	must(t, say.Encode(Config{
		Number: 1, Workers: 1, MaxTTL: time.Second, Surfaces: []string{"http-direct"}, History: filepath.Join(t.TempDir(), "history"),
		Gateways: []Gateway{{API: "http://127.0.0.1:1"}}, WriterURL: "postgres://nobody@127.0.0.1:1/none",
	}))
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
		must(t, say.Encode(c.order))
		var r Report
		if err := answers.Decode(&r); err != nil || r.Done != c.order.Do || (r.Error != "") != c.fails {
			t.Errorf("%+v: %+v, %v", c.order, r, err)
		}
	}
	_ = orders.Close()
	must(t, <-ended)
}

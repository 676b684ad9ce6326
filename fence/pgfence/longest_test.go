package pgfence_test

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
)

const lockNodes = "the nodes"

func (w world) longest(t *testing.T, atLeast time.Duration) fence.LongestTTL {
	t.Helper()
	said, err := w.fence.RaiseLongest(t.Context(), lockNodes, atLeast)
	if err != nil {
		t.Fatal(err)
	}
	return said
}

func (w world) keep(t *testing.T, group string, record int64, kept bool) {
	t.Helper()
	if err := w.fence.KeepLongest(t.Context(), group, record, kept); err != nil {
		t.Fatal(err)
	}
}

func TestTheRecordOfTheLongestTTLOnlyRises(t *testing.T) {
	t.Parallel()
	w := setup(t)
	first := w.longest(t, 10*time.Second)
	for _, c := range []struct{ atLeast, want time.Duration }{
		{time.Second, 10 * time.Second}, {10 * time.Second, 10 * time.Second}, {time.Minute, time.Minute}, {0, time.Minute},
	} {
		if said := w.longest(t, c.atLeast); said != (fence.LongestTTL{TTL: c.want, Record: first.Record}) {
			t.Errorf("at least %v: %+v in record %d", c.atLeast, said, first.Record)
		}
	}
	if _, err := w.fence.RaiseEpoch(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	if said := w.longest(t, 0); said.TTL != time.Minute || said.Record != first.Record {
		t.Errorf("after an epoch: %+v", said)
	}
}

func TestARecordCountsForTheNodesThatWereAdmittedUnderIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	is := w.longest(t, time.Second).Record
	for _, c := range []struct {
		group      string
		record     int64
		kept, want bool
	}{
		{lockNodes, is - 1, true, false},
		{lockNodes, is + 1, true, false},
		{"others", is, true, false},
		{lockNodes, is, true, true},
		{lockNodes, is, true, true},
		{"others", is, false, true},
		{lockNodes, is, false, false},
		{lockNodes, is, false, false},
	} {
		w.keep(t, c.group, c.record, c.kept)
		if said := w.longest(t, 2*time.Second); said.Kept != c.want {
			t.Errorf("%+v: %+v", c, said)
		}
	}
}

// A lease may last longer than the record if PostgreSQL has lost a raise, or if a program without a record admitted a
// node. Then a new record begins.
func TestARecordBeginsAnewWhereItMayBeTooLow(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"fences were invalidated":               `SELECT FROM fence.invalidate_all()`,
		"they were again, under this identity":  `SELECT FROM fence.invalidate_all() a, fence.invalidate_all(true) b`,
		"a program without a record":            `SELECT fence.raise_epoch(0)`,
		"another server, or another timeline":   `UPDATE fence.epochs SET history = 'another'`,
		"of a dump, whose tables have new oids": `UPDATE fence.epochs SET history = regexp_replace(history, '\d+/\d+$', '1/1')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			before := w.longest(t, time.Minute)
			w.keep(t, lockNodes, before.Record, true)
			if said := w.longest(t, 0); !said.Kept {
				t.Fatal("the record does not count: this test shows nothing")
			}
			w.exec(t, sql)
			w.keep(t, lockNodes, before.Record, true) // by a program that does not know the new record yet
			after := w.longest(t, 2*time.Second)
			if after.Kept || after.Record <= before.Record || after.TTL != 2*time.Second {
				t.Errorf("%+v after %+v", after, before)
			}
			if again := w.longest(t, time.Second); again != after {
				t.Errorf("%+v, and then %+v", after, again)
			}
		})
	}
}

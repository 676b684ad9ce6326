//go:build unix

package objects

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
)

func TestLookUpsThatWaitAreAskedTogetherAndAnsweredEach(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Hour)
	const keys = 20
	ids := map[string]blob.ID{}
	for i := range keys {
		key := fmt.Sprintf("k%d", i)
		ids[key] = a.write(key)
	}
	first, release := a.held()
	var all []*Lookup
	for i := range keys {
		all = append(all, a.lookups.begin("b", fmt.Sprintf("k%d", i)), a.lookups.begin("b", fmt.Sprintf("no%d", i)), a.lookups.begin("no", "k1"))
	}
	all = append(all, a.lookups.begin("b", "k3")) // twice in one question
	var readers sync.WaitGroup
	for _, l := range slices.Backward(all) {
		readers.Go(func() {
			c, err := l.wait()
			switch id, there := ids[l.key]; {
			case err != nil:
				t.Error(err)
			case c.bucket != (l.bucket == "b"), c.key != (there && l.bucket == "b"):
				t.Errorf("%s/%s: bucket %v, key %v", l.bucket, l.key, c.bucket, c.key)
			case c.key && (c.ID != id || c.Blobs[0] != id || len(c.Blobs) != 2 || c.ETag != "e-"+l.key || c.Size != 7 ||
				!slices.Equal(c.BlobSizes, []int64{3, 4}) || c.Attributes.ContentType != "text/plain" || c.Attributes.PartChecksums != nil || c.Kept ||
				time.Since(c.CreatedAt).Abs() > time.Hour):
				t.Errorf("%s: %+v", l.key, c)
			}
		})
	}
	release()
	if c, err := first.wait(); err != nil || !c.key {
		t.Errorf("the first: %+v, %v", c, err)
	}
	readers.Wait()
	if n := a.wire.asked.Load(); n != 2 {
		t.Errorf("PostgreSQL was asked %d times, want 2", n)
	}
	a.nothingIsLeft()
}

// A look-up that joined a question which is under way already would see the past.
func TestALookUpSeesWhatWasWrittenBeforeItBegan(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Hour)
	release := a.wire.hold()
	defer release()
	early := a.lookups.begin("b", "first")
	seen := make(chan current)
	go func() {
		c, err := early.wait()
		if err != nil {
			t.Error(err)
		}
		seen <- c
	}()
	<-a.wire.came // PostgreSQL has answered it
	id := a.write("first")
	late := a.lookups.begin("b", "first")
	release()
	if c := <-seen; c.ID == id {
		t.Error("the early one saw the future")
	}
	if c, err := late.wait(); err != nil || c.ID != id {
		t.Errorf("a look-up after the write found %x, %v; want %x", c.ID, err, id)
	}
	a.nothingIsLeft()
}

func TestALookUpThatFailsFailsAlone(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Hour)
	id := a.write("good")
	first, release := a.held()
	good, bad, other := a.lookups.begin("b", "good"), a.lookups.begin("b", "not\xfftext"), a.lookups.begin("b", "good")
	release()
	if _, err := first.wait(); err != nil {
		t.Error(err)
	}
	for _, l := range []*Lookup{good, bad, other} {
		v, found, err := a.current(a.t.Context(), l, l.bucket, l.key)
		if l == bad {
			if err == nil || errors.Is(err, ErrDatabaseAway) {
				t.Errorf("text that is none: %v", err)
			}
		} else if err != nil || !found || v.ID != id {
			t.Errorf("got %x, %v, %v", v.ID, found, err)
		}
	}
	a.nothingIsLeft()
}

func TestWhoLeavesLeavesTheOthersTheirAnswers(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Hour)
	id := a.write("x")
	for gone := range 5 {
		first, release := a.held()
		all := []*Lookup{first}
		for range 4 {
			all = append(all, a.lookups.begin("b", "x"))
		}
		if gone > 0 { // it waits: nobody asks for it
			all[gone].Leave()
		}
		release()
		if gone == 0 { // it is to read the answer
			first.Leave()
		}
		for i, l := range all {
			if i == gone {
				continue
			}
			if c, err := l.wait(); err != nil || i > 0 && c.ID != id {
				t.Errorf("without %d, %d got %x, %v", gone, i, c.ID, err)
			}
		}
		a.nothingIsLeft()
	}
	// The reader of a question that others wait behind, and one beside it that was asked, too.
	first, release := a.held()
	reader, beside, last := a.lookups.begin("b", "x"), a.lookups.begin("b", "x"), a.lookups.begin("b", "x")
	release()
	first.Leave()
	beside.Leave()
	reader.Leave()
	if c, err := last.wait(); err != nil || c.ID != id {
		t.Errorf("got %x, %v", c.ID, err)
	}
	a.nothingIsLeft()
}

func TestLookUpsOutliveALostConnection(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*asking){
		"cut": func(a *asking) { a.wire.cut() },
		"PostgreSQL ends the sessions": func(a *asking) {
			a.exec("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := setUpLookups(t, time.Hour)
			id := a.write("x")
			first, release := a.held()
			var all []*Lookup
			for range 10 {
				all = append(all, a.lookups.begin("b", "x"))
			}
			lose(a)
			release()
			var readers sync.WaitGroup
			for _, l := range append(all, first) {
				readers.Go(func() {
					if v, found, err := a.current(a.t.Context(), l, l.bucket, l.key); err != nil || !found || l != first && v.ID != id {
						t.Errorf("got %x, %v, %v", v.ID, found, err)
					}
				})
			}
			readers.Wait()
			a.nothingIsLeft()
			if _, found, err := a.current(a.t.Context(), nil, "b", "x"); err != nil || !found {
				t.Errorf("afterwards: %v, %v", found, err)
			}
		})
	}
}

func TestNobodyWaitsLongForAQuestionThatHangs(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Millisecond)
	release := a.wire.hold()
	defer release()
	hangs := a.lookups.begin("b", "first")
	ended := make(chan error)
	go func() {
		_, err := hangs.wait()
		ended <- err
	}()
	<-a.wire.came
	a.wire.mu.Lock()
	a.wire.held = nil // for all but that one
	a.wire.mu.Unlock()
	for range 3 {
		if c, err := a.lookups.begin("b", "warm").wait(); err != nil || !c.key {
			t.Errorf("beside it: %+v, %v", c, err)
		}
	}
	release()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	a.nothingIsLeft()
}

// Who waits for a second question waits no longer, though the first one was quick.
func TestNobodyWaitsLongForALaterQuestionThatHangs(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, 300*time.Millisecond)
	first, release := a.held()
	hangs := a.lookups.begin("b", "warm")
	ended := make(chan error, 2)
	for _, l := range []*Lookup{first, hangs} {
		go func() {
			_, err := l.wait()
			ended <- err
		}()
	}
	<-a.wire.came
	later := make(chan struct{})
	a.wire.mu.Lock()
	a.wire.held = later
	a.wire.mu.Unlock()
	release()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	<-a.wire.came
	a.wire.mu.Lock()
	a.wire.held = nil // for all but that one
	a.wire.mu.Unlock()
	if c, err := a.lookups.begin("b", "warm").wait(); err != nil || !c.key {
		t.Errorf("beside it: %+v, %v", c, err)
	}
	close(later)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	a.nothingIsLeft()
}

func TestALookUpKeepsNoConnectionForGood(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Hour)
	first, release := a.held()
	before := a.pool.Stat().AcquireCount()
	all := []*Lookup{first}
	for range (maxHanded + 2) * maxAsked { // each question is followed by another one
		all = append(all, a.lookups.begin("b", "warm"))
	}
	release()
	for _, l := range all {
		if c, err := l.wait(); err != nil || !c.key {
			t.Fatalf("got %+v, %v", c, err)
		}
	}
	if n := a.pool.Stat().AcquireCount() - before; n != 1 {
		t.Errorf("the pool gave a connection %d times meanwhile, want once", n)
	}
	a.nothingIsLeft()
}

func TestAnAnswerOfAnotherFormIsRefused(t *testing.T) {
	t.Parallel()
	eight := strings.Repeat("\x00", 7) + "\x01"
	array := "\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x14\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x08" + eight
	uuids := "\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x0b\x86\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x10" + strings.Repeat("u", 16)
	good := []string{eight, strings.Repeat("i", 16), uuids, array, eight, "etag", "{}", eight, "\x01"}
	take := func(row []string) error {
		q := &question{asked: []*Lookup{{}}}
		var values [][]byte
		for _, v := range row {
			values = append(values, []byte(v))
		}
		return q.take(values)
	}
	if err := take(good); err != nil {
		t.Fatal(err)
	}
	for column, value := range good {
		if column == 5 { // any text
			continue
		}
		for n := range len(value) {
			row := slices.Clone(good)
			row[column] = value[:n]
			if err := take(row); err == nil {
				t.Errorf("column %d with %d bytes of %d is taken", column, n, len(value))
			}
		}
	}
	for _, n := range []string{strings.Repeat("\x00", 8), strings.Repeat("\x00", 7) + "\x02", strings.Repeat("\xff", 8)} {
		row := slices.Clone(good)
		if row[0] = n; take(row) == nil {
			t.Errorf("look-up %x is taken", n)
		}
	}
}

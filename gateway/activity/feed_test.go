package activity_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// taken returns what was written since its last call.
func (l *lines) taken() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

func acquired(resource string) activity.Event {
	return activity.Event{Kind: wire.EventAcquired, Resource: resource}
}

func names(events []activity.Event) string {
	var all []string
	for _, e := range events {
		text := e.Resource
		if e.Kind == wire.EventMissed {
			text = fmt.Sprintf("missed:%d", e.Missed)
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func TestAReaderGoesOnWhereItWasAndHearsWhatItMissed(t *testing.T) {
	t.Parallel()
	f := activity.New(activity.Config{Keep: 4})
	defer f.Close()
	if got := f.Kept(""); len(got) != 0 {
		t.Errorf("before all: %v", got)
	}
	for i := 1; i <= 3; i++ {
		f.Tell(acquired(fmt.Sprint("r", i)))
	}
	all := f.Kept("")
	if got := names(all); got != "r1 r2 r3" {
		t.Errorf("got %q", got)
	}
	second := all[1].ID
	for i := 4; i <= 9; i++ {
		f.Tell(acquired(fmt.Sprint("r", i)))
	}
	for after, want := range map[string]string{
		"":                                      "r6 r7 r8 r9",
		second:                                  "missed:3 r6 r7 r8 r9",
		all[2].ID:                               "missed:2 r6 r7 r8 r9",
		"other-7":                               "missed:0 r6 r7 r8 r9",
		"\x00 junk":                             "missed:0 r6 r7 r8 r9",
		strings.Replace(second, "-2", "-99", 1): "missed:0 r6 r7 r8 r9", // from a run with more events
	} {
		if got := names(f.Kept(after)); got != want {
			t.Errorf("after %q: %q, want %q", after, got, want)
		}
	}
	// A reader that stops right after a missed event continues after it.
	missed := f.Kept(second)[0]
	if got := names(f.Kept(missed.ID)); got != "r6 r7 r8 r9" {
		t.Errorf("after %q: %q", missed.ID, got)
	}
	last := f.Kept("")[3].ID
	if got := f.Kept(last); len(got) != 0 {
		t.Errorf("after the last one: %v", got)
	}
}

func TestAReaderWaitsForWhatComes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := activity.New(activity.Config{})
		defer f.Close()
		got := make(chan string, 1)
		go func() {
			events, err := f.Since(t.Context(), "")
			got <- fmt.Sprint(names(events), err)
		}()
		synctest.Wait()
		f.Tell(acquired("r1"))
		if event := <-got; event != "r1<nil>" {
			t.Errorf("got %q", event)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if events, err := f.Since(ctx, f.Kept("")[0].ID); err == nil {
			t.Errorf("got %v", events)
		}
	})
}

// A repeated refusal is logged at once, and then once per pause with the number of suppressed lines; every refusal is
// counted.
func TestTheLogIsToldOfEachResourceOnceAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log lines
		counted := 0
		f := activity.New(activity.Config{
			Logger: slog.New(slog.NewTextHandler(&log, nil)), Pause: 10 * time.Second, Refused: func(surface, code string) {
				if surface == wire.SurfacePG && code == "ZF001" {
					counted++
				}
			},
		})
		refuse := func(resource string, times int) {
			for range times {
				e, _ := activity.Refused(&fence.StaleError{Resource: resource, Presented: 3, Recorded: 4}, activity.Event{Surface: wire.SurfacePG, Login: "app"})
				f.Tell(e)
			}
		}
		said := func() []string {
			synctest.Wait()
			return strings.Split(strings.TrimSpace(log.taken()), "\n")
		}
		refuse("a", 100)
		refuse("b", 1)
		got := said()
		if len(got) != 2 || !strings.Contains(got[0], "resource=a login=app presented=3 recorded=4") || strings.Contains(got[0], "suppressed_before") || !strings.Contains(got[1], "resource=b") {
			t.Errorf("at once: %q", got)
		}
		<-time.After(11 * time.Second) // on the bubble's clock
		if got = said(); len(got) != 1 || !strings.Contains(got[0], "resource=a") || !strings.Contains(got[0], "suppressed_before=98") {
			t.Errorf("after a pause: %q", got)
		}
		<-time.After(11 * time.Second)
		if got = said(); got[0] != "" {
			t.Errorf("though nothing was refused: %q", got)
		}
		refuse("b", 3)
		f.Close()
		if got = said(); len(got) != 2 || !strings.Contains(got[1], "suppressed_before=1") {
			t.Errorf("at the end: %q", got)
		}
		if counted != 104 {
			t.Errorf("counted %d", counted)
		}
	})
}

// Clients choose the names of resources, so there is no limit to their number.
func TestTheLogsMemoryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log lines
		f := activity.New(activity.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for i := range 3000 {
			e, _ := activity.Refused(&fence.StaleError{Resource: fmt.Sprint("r", i)}, activity.Event{})
			f.Tell(e)
		}
		f.Close()
		text := log.taken()
		if n := strings.Count(text, "\n"); n != 1002 || !strings.Contains(text, "suppressed_before=1998") {
			t.Errorf("%d lines", n)
		}
	})
}

func TestOtherEventsPushNoRefusalOut(t *testing.T) {
	t.Parallel()
	f := activity.New(activity.Config{KeepRefused: 2, Logger: slog.New(slog.DiscardHandler)})
	defer f.Close()
	refused := func(resource string) activity.Event {
		return activity.Event{Kind: wire.EventRefused, Code: "ZF001", Resource: resource}
	}
	f.Tell(refused("r1"))
	for range 5000 {
		f.Tell(acquired("busy"))
	}
	first := f.RefusedKept("")
	if got := names(first); got != "r1" {
		t.Fatalf("got %q", got)
	}
	if got := f.RefusedKept(first[0].ID); len(got) != 0 {
		t.Errorf("after the only one: %q", names(got))
	}
	f.Tell(refused("r2"))
	if got, err := f.RefusedSince(t.Context(), first[0].ID); err != nil || names(got) != "r2" {
		t.Errorf("got %q, %v", names(got), err)
	}
	f.Tell(refused("r3"))
	f.Tell(refused("r4"))
	if got := names(f.RefusedKept("")); got != "r3 r4" {
		t.Errorf("got %q", got)
	}
	if got := names(f.RefusedKept(first[0].ID)); got != "missed:0 r3 r4" {
		t.Errorf("behind: %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.RefusedSince(ctx, f.RefusedKept("")[1].ID); err == nil {
		t.Error("waits for nothing, and says nothing")
	}
}

package groups

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A slow commit delays only its own callers, and the number of concurrent groups is bounded.
func TestASlowGroupHoldsUpTheNextForItsPaceOnly(t *testing.T) {
	t.Parallel()
	began, slow := make(chan []string, 16), make(chan struct{})
	g := &Groups[string]{
		Settle: func(_ context.Context, group []string) []Settled {
			began <- group
			<-slow
			return Unsettled(len(group), false)
		},
		Key:     func(name string) string { return name },
		Timeout: time.Minute,
		Pace:    time.Millisecond,
	}
	ended := make(chan error, 16)
	for _, name := range []string{"a", "b", "c", "d"} {
		go func() {
			_, err := g.Do(t.Context(), name)
			ended <- err
		}()
		if group := <-began; len(group) != 1 || group[0] != name {
			t.Fatalf("%s: %v began", name, group)
		}
	}
	const late = 3
	for range late {
		go func() {
			_, err := g.Do(t.Context(), "late")
			ended <- err
		}()
	}
	count := func(want func() bool, what string) {
		t.Helper()
		for until := time.Now().Add(20 * time.Second); ; <-time.After(time.Millisecond) {
			g.mu.Lock()
			ok := want()
			g.mu.Unlock()
			if ok {
				return
			}
			if time.Now().After(until) {
				t.Fatal(what)
			}
		}
	}
	count(func() bool { return len(g.waiting) == late }, "more groups are on their way than may be")
	close(slow)
	for range 4 + late {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	count(func() bool { return g.flying == 0 && len(g.waiting) == 0 }, "a group has not ended")
}

// Calls that arrive while a group is in flight form the next group, each resource once.
func TestCallsThatComeMeanwhileGoTogether(t *testing.T) {
	t.Parallel()
	began, slow := make(chan []string, 16), make(chan struct{})
	g := &Groups[string]{
		Settle: func(_ context.Context, group []string) []Settled {
			began <- group
			<-slow
			return Unsettled(len(group), false)
		},
		Key: func(name string) string { return name }, Timeout: time.Minute, Pace: time.Hour,
	}
	ended := make(chan error, 16)
	ask := func(name string) {
		go func() {
			_, err := g.Do(t.Context(), name)
			ended <- err
		}()
	}
	ask("first")
	<-began
	for i, name := range []string{"b", "a", "b"} {
		ask(name)
		for tick := time.NewTicker(time.Millisecond); g.Waiting() <= i; {
			<-tick.C
		}
	}
	close(slow)
	for i, want := range []string{"a b", "b"} {
		if got := strings.Join(<-began, " "); got != want {
			t.Errorf("group %d is %q; want %q", i, got, want)
		}
	}
	for range 4 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

package lock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// inBubble is a Locker over one new node in memory, with the product's own times. It is connected on both lanes.
func inBubble(t *testing.T) (*Locker, *memredis.Node) {
	t.Helper()
	n := memredis.Start(t)
	l, err := New(Config{unwatched: true, Nodes: []Node{{Addr: "node-1", Dialer: n.Dial}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := l.group.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		lease, err := l.TryAcquire(t.Context(), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return l, n
}

// An op that is queued behind another one waits for the node twice. Each wait is shorter than the node timeout, but
// both together are longer.
func TestANodeThatAnswersIsNotSilentToWhoeverIsQueued(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, n := inBubble(t)
		first, second := sameLane(l)
		acquire := func(resource string) error {
			_, err := l.TryAcquire(t.Context(), resource)
			return err
		}
		n.Replies.Delay(func() time.Duration { return DefaultNodeTimeout * 3 / 4 })
		got := make(chan error, 1)
		begun := time.Now()
		go func() { got <- acquire(first) }()
		synctest.Wait() // it is sent
		if err := acquire(second); err != nil {
			t.Errorf("the second: %v", err)
		}
		if took := time.Since(begun); took != 2*DefaultNodeTimeout*3/4 {
			t.Errorf("both took %v", took)
		}
		if err := <-got; err != nil {
			t.Errorf("the first: %v", err)
		}
	})
}

// sameLane returns two resources whose ops use the same connection.
func sameLane(l *Locker) (string, string) {
	lane := func(resource string) *node.Node { return l.nodes[0].Lane(hashed(resource)) }
	second := "1"
	for i := 2; lane(second) != lane("0"); i++ {
		second = fmt.Sprint(i)
	}
	return "0", second
}

// A process that did not run looks late, and has not read what came. So silence is a number of looks, however
// far apart they are, and an answer to any op of the connection ends it.
func TestANodeIsSilentAfterFourLooksWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, n := inBubble(t)
		first, second := sameLane(l)
		synctest.Wait()
		n.Freeze()
		r := l.newRound(node.OpRelease, "release", first)
		defer r.drop()
		r.send(l.all(), node.Ask{Owner: node.NewID(), Expires: time.Now().Add(time.Minute)})
		look := func(want bool) {
			t.Helper()
			time.Sleep(DefaultNodeTimeout)
			if got := r.silent(); got != want {
				t.Errorf("silent: %t; want %t", got, want)
			}
		}
		look(false)
		look(false)
		look(false)
		l.nodes[0].Lane(hashed(second)).Signs.Add(1)
		look(false)
		look(false)
		look(false)
		look(false)
		look(true)
		n.Thaw()
		<-r.done // the answer that came at last counts
	})
}

// A caller that waits because too many others wait for answers ends with its context.
func TestAnAcquisitionWaitsWhileManyWaitForAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := inBubble(t)
		for range maxAsking {
			l.asking <- struct{}{}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if _, err := l.TryAcquire(ctx, "r"); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		got := make(chan error, 1)
		go func() {
			_, err := l.TryAcquire(t.Context(), "r")
			got <- err
		}()
		time.Sleep(time.Minute)
		l.answered()
		if err := <-got; err != nil {
			t.Errorf("once one is answered: %v", err)
		}
	})
}

package lock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
)

// inBubble is a Locker over n new nodes in memory, with the product's own times.
func inBubble(t *testing.T, n int) (*messages, []*memredis.Node) {
	t.Helper()
	nodes := make([]*memredis.Node, n)
	cfg := Config{unwatched: true}
	for i := range nodes {
		nodes[i] = memredis.Start(t)
		cfg.Nodes = append(cfg.Nodes, Node{Addr: fmt.Sprintf("node-%d", i+1), Dialer: nodes[i].Dial})
	}
	return newMessages(t, cfg), nodes
}

// An op that is queued behind another one waits for the node twice. Each wait is shorter than the node timeout, but
// both together are longer.
func TestANodeThatAnswersIsNotSilentToWhoeverIsQueued(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, nodes := inBubble(t, 1)
		first, second := sameLane(m.l)
		acquire := func(resource string) error {
			_, err := m.l.TryAcquire(t.Context(), resource)
			return err
		}
		m.run(0, m.on(first, opRelease, newID())) // connects
		nodes[0].Replies.Delay(func() time.Duration { return DefaultNodeTimeout * 3 / 4 })
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
	lane := func(resource string) *node { return l.nodes[0].lane(hashed(resource)) }
	second := "1"
	for i := 2; lane(second) != lane("0"); i++ {
		second = fmt.Sprint(i)
	}
	return "0", second
}

// A process that did not run looks late, and has not read what came meanwhile. So silence is a number of looks, however
// far apart they are, and an answer to any op of the connection ends it.
func TestANodeIsSilentAfterFourLooksWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, nodes := inBubble(t, 1)
		l := m.l
		first, second := sameLane(l)
		m.run(0, m.on(first, opRelease, newID())) // connects
		synctest.Wait()
		nodes[0].Freeze()
		r := l.newRound(opRelease, "release", first)
		defer r.drop()
		r.send(l.all(), ask{owner: newID(), expires: time.Now().Add(time.Minute)})
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
		l.nodes[0].lane(hashed(second)).signs.Add(1)
		look(false)
		look(false)
		look(false)
		look(false)
		look(true)
		nodes[0].Thaw()
		<-r.done // the answer that came at last counts
	})
}

// A caller that waits because too many others wait for answers ends with its context.
func TestAnAcquisitionWaitsWhileManyWaitForAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _ := inBubble(t, 1)
		for range maxAsking {
			m.l.asking <- struct{}{}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if _, err := m.l.TryAcquire(ctx, "r"); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		got := make(chan error, 1)
		go func() {
			_, err := m.l.TryAcquire(t.Context(), "r")
			got <- err
		}()
		time.Sleep(time.Minute)
		m.l.answered()
		if err := <-got; err != nil {
			t.Errorf("once one is answered: %v", err)
		}
	})
}

// Redis counts whole milliseconds: in the last one a key has none left, and is there.
func TestAQuarantineRunsToTheEndOfItsLastMillisecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, nodes := inBubble(t, 1)
		n := m.l.nodes[0]
		const quarantine = time.Second
		if err := nodes[0].Client(t).Set(t.Context(), n.keys.q, "1", quarantine).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(quarantine - time.Millisecond/2)
		if left, err := n.inQuarantine(t.Context()); err != nil || left <= 0 {
			t.Errorf("half a millisecond before its end %v are left: %v", left, err)
		}
		time.Sleep(time.Millisecond)
		if left, err := n.inQuarantine(t.Context()); err != nil || left != 0 {
			t.Errorf("after its end %v are left: %v", left, err)
		}
	})
}

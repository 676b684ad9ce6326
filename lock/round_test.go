package lock

import (
	"fmt"
	"io"
	"testing"
	"time"
)

// An op that is queued behind another one waits for the node twice. Each wait is shorter than the node timeout, but
// both together are longer.
func TestANodeThatAnswersIsNotSilentToWhoeverIsQueued(t *testing.T) {
	t.Parallel()
	for timeout := 400 * time.Millisecond; ; timeout *= 2 {
		err := queuedBehindAnother(t, timeout)
		if err == nil {
			return
		}
		t.Logf("node timeout %v: %v", timeout, err)
		if timeout > 3*time.Second {
			t.Fatal("not at any pace")
		}
	}
}

func queuedBehindAnother(t *testing.T, timeout time.Duration) error {
	asked := make(chan struct{}, 10)
	s := newServer(t, func(command []string, out io.Writer) {
		switch command[0] {
		case "HELLO":
			_, _ = io.WriteString(out, "*2\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n")
		case "HGET":
			_, _ = io.WriteString(out, "$5\r\nnonce\r\n")
		default:
			asked <- struct{}{}
			<-time.After(timeout * 3 / 4)
			_, _ = io.WriteString(out, "*1\r\n:1\r\n")
		}
	})
	l, err := New(Config{Nodes: []Node{{Addr: s.addr}}, NodeTimeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	first, second := sameLane(l)
	got := make(chan error, 1)
	acquire := func(resource string) error {
		_, err := l.TryAcquire(t.Context(), resource, WithTTL(time.Minute))
		return err
	}
	go func() { got <- acquire(first) }()
	<-asked
	if err := acquire(second); err != nil {
		return fmt.Errorf("the second: %w", err)
	}
	if err := <-got; err != nil {
		return fmt.Errorf("the first: %w", err)
	}
	return nil
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

package zklock

import (
	"context"
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"
)

// An acquisition that is sent after the deletion that gives it up leaves its node behind.
func TestACallWhoseContextHasEndedIsNotSent(t *testing.T) {
	t.Parallel()
	s := &session{known: make(chan struct{})}
	close(s.known)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sent := make(chan struct{}, 1000)
	for range cap(sent) {
		_, err := call(ctx, s, func(*zk.Conn) (int, error) {
			sent <- struct{}{}
			return 0, nil
		})
		if !isUnsent(err) || !errors.Is(err, context.Canceled) {
			t.Fatalf("%v; want that it was not sent", err)
		}
	}
	if n := len(sent); n > 0 {
		t.Errorf("%d of %d calls were sent", n, cap(sent))
	}
}

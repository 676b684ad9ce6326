package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// leftBehind begins a node's admission in another process, which then ends.
func leftBehind(t *testing.T, cfg lock.Config, node string) {
	t.Helper()
	l, err := lock.New(cfg)
	must(t, err)
	_, err = admitBegin(t, l, node)
	must(t, errors.Join(err, l.Close()))
}

// quarantineOf is the value of a node's quarantine key.
func quarantineOf(t *testing.T, cfg lock.Config, addr string) string {
	t.Helper()
	return client(t, addr).Get(t.Context(), cfg.KeyPrefix+":q").Val()
}

// readmitting runs Admit until the test ends, or until stop.
func readmitting(t *testing.T, l *lock.Locker, node string) (readmitted <-chan error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- patiently(ctx, func() error { return l.Admit(ctx, node) }) }()
	t.Cleanup(cancel)
	return done, cancel
}

// The process that began an admission has ended. Another process shortens the admission's quarantine of five minutes,
// at the earliest a round's time after it first saw it, and not below what the other nodes' locks require.
func TestAQuarantineThatAnotherProcessBeganIsShortened(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	lease := acquireEverywhere(t, l, "r", lock.WithTTL(8*time.Second))
	dropLock(t, servers[0].Addr, cfg.KeyPrefix, "r") // a minority of the other nodes has it
	restart(t, servers[1], nil)
	leftBehind(t, cfg, "node-2")
	seen := time.Now()
	readmitted, _ := readmitting(t, l, "node-2")
	eventually(t, 20*time.Second, "the quarantine is shortened", func() bool {
		text := quarantineOf(t, cfg, servers[1].Addr)
		return text == "" || strings.Contains(text, "shortened")
	})
	if passed := time.Since(seen); passed < time.Second {
		t.Errorf("others were asked %v after the admission was seen", passed)
	}
	if left, lasts := status(t, l)[1].Quarantine, time.Until(lease.Deadline()); left < lasts || left > 9*time.Second {
		t.Errorf("%v are left of the quarantine, %v of the lease", left, lasts)
	}
	eventually(t, 20*time.Second, "the quarantine is over", func() bool { return l.Impatient("node-2") })
	must(t, <-readmitted)
}

// With three nodes, two others that do not answer allow no shortening of the third one's quarantine.
func TestAnotherProcessShortensNothingWhereTheOthersCannotTell(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	restart(t, servers[0], nil)
	restart(t, servers[1], nil)
	leftBehind(t, cfg, "node-2")
	_, stop := readmitting(t, l, "node-2")
	<-time.After(3 * time.Second) // there is no event to wait for
	stop()
	if left := status(t, l)[1].Quarantine; left < 4*time.Minute {
		t.Errorf("only %v are left of the quarantine", left)
	}
}

// A quarantine is shortened once: later answers of the other nodes do not shorten it further.
func TestAQuarantineIsShortenedOnce(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	lease := acquire(t, l, "r", lock.WithTTL(time.Minute))
	restart(t, servers[1], nil)
	begun, err := admitBegin(t, l, "node-2")
	must(t, err)
	l.Aged(&begun)
	eventually(t, 20*time.Second, "the quarantine is shortened", func() bool { // once the others answer in time
		if err := admitEnd(t, l, begun); !errors.Is(err, lock.ErrQuarantined) {
			t.Fatalf("admit: %v", err)
		}
		return status(t, l)[1].Quarantine <= time.Minute
	})
	release(t, lease)
	if err := admitEnd(t, l, begun); !errors.Is(err, lock.ErrQuarantined) {
		t.Errorf("admit, once the lease is released: %v", err)
	}
	if left := status(t, l)[1].Quarantine; left > time.Minute || left < 10*time.Second {
		t.Errorf("%v are left of the quarantine", left)
	}
}

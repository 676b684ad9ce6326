package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// leftBehind begins a node's admission in another process, which then ends.
func leftBehind(t *testing.T, cfg lock.Config, node string) {
	t.Helper()
	l, err := lock.New(cfg)
	must(t, err)
	_, err = l.BeginAdmission(t.Context(), node)
	must(t, errors.Join(err, l.Close()))
}

// shortened reports whether a node's quarantine was shortened, or has ended.
func shortened(t *testing.T, n *memredis.Node) bool {
	t.Helper()
	text := n.Client(t).Get(t.Context(), lock.DefaultKeyPrefix+":q").Val()
	return text == "" || strings.Contains(text, "shortened")
}

// The process that began an admission has ended. Another process shortens the admission's quarantine of a minute, at
// the earliest a round's time after it first saw it, and not below what the other nodes' locks require.
func TestAQuarantineThatAnotherProcessBeganIsShortened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		lease := acquireOnAll(t, l, "r")
		dropOn(t, nodes[0], "r") // a minority of the other nodes has it
		forgets(t, nodes[1])
		leftBehind(t, cfg, "node-2")
		seen := time.Now()
		readmitted := make(chan error, 1)
		go func() { readmitted <- admin.Of(l).Admit(t.Context(), "node-2") }()
		for !shortened(t, nodes[1]) {
			time.Sleep(10 * time.Millisecond)
		}
		lasted(t, "others were asked after the admission was seen for", time.Since(seen), time.Second, 500*time.Millisecond)
		margin := lock.DefaultTTL - l.Validity()
		lasted(t, "left of the quarantine", admin.Of(l).Status(t.Context())[1].Quarantine, lease.Deadline().Left(), margin+time.Millisecond)
		must(t, <-readmitted)
		// The process that began it is given 10 to 15 s to end it.
		lasted(t, "admitted after the lease", lease.Deadline().Since(), lock.EndPatience, lock.EndPatience/2+5*time.Second)
	})
}

// With three nodes, two others that do not answer allow no shortening of the third one's quarantine.
func TestAnotherProcessShortensNothingWhereTheOthersCannotTell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		forgets(t, nodes[0])
		forgets(t, nodes[1])
		leftBehind(t, cfg, "node-2")
		ctx, cancel := context.WithTimeout(t.Context(), lock.DefaultMaxTTL/2)
		defer cancel()
		if err := admin.Of(l).Admit(ctx, "node-2"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("admit: %v", err)
		}
		if left := admin.Of(l).Status(t.Context())[1].Quarantine; left != lock.DefaultMaxTTL/2 {
			t.Errorf("after half of the quarantine %v are left", left)
		}
	})
}

// A quarantine is shortened once: later answers of the other nodes do not shorten it further.
func TestAQuarantineIsShortenedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		lease := acquire(t, l, "r")
		forgets(t, nodes[1])
		begun, err := l.BeginAdmission(t.Context(), "node-2")
		must(t, err)
		const asked = 2 * time.Second
		time.Sleep(asked)
		end := func(what string) {
			t.Helper()
			if err := l.EndAdmission(t.Context(), begun); !errors.Is(err, lock.ErrQuarantined) {
				t.Errorf("admit %s: %v", what, err)
			}
			if left := admin.Of(l).Status(t.Context())[1].Quarantine; left != lock.DefaultTTL-asked+time.Millisecond {
				t.Errorf("%s: %v are left of the quarantine", what, left)
			}
		}
		end("while the lease is held")
		release(t, lease)
		end("once it is released")
	})
}

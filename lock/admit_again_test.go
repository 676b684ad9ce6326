package lock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// A temporary error does not cost a whole quarantine: the admission continues.
func TestAnAdmissionGoesOnAfterAnError(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(cancel context.CancelFunc) error{
		"the epoch is not raised": func(context.CancelFunc) error { return errors.New("PostgreSQL is away") },
		"the caller gives up":     func(cancel context.CancelFunc) error { cancel(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 1)
				kept := &epochs{}
				cfg.Epochs = kept
				before := acquire(t, started(t, cfg), "r")
				release(t, before)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				failed := false
				cfg.Epochs = epochStore(func(ctx context.Context, above int64) (int64, error) {
					if !failed {
						failed = true
						if err := fail(cancel); err != nil {
							return 0, err
						}
					}
					return kept.RaiseEpoch(ctx, above)
				})
				l := locker(t, cfg)
				nodes[0].Lose(t)
				lost := time.Now()
				if err := admin.Of(l).Admit(ctx, "node-1"); err == nil || !failed {
					t.Fatalf("readmit: %v", err)
				}
				begun := hashField(t, nodes[0], "@pending")
				time.Sleep(lock.DefaultMaxTTL / 2)
				must(t, admin.Of(l).Admit(t.Context(), "node-1"))
				lasted(t, "admitted after", time.Since(lost), lock.DefaultMaxTTL, 10*time.Millisecond)
				if is := hashField(t, nodes[0], "@incarnation"); is != begun || begun == "" {
					t.Errorf("begun as %q, admitted as %q", begun, is)
				}
				after := acquire(t, l, "r")
				if token(t, after) <= before.Ref().Token {
					t.Errorf("token %d after %d", token(t, after), before.Ref().Token)
				}
				release(t, after)
			})
		})
	}
}

// An admission is not continued if the node was restarted since it began.
func TestAnAdmissionThatAnErrorStoppedIsVoidAfterARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Epochs = &epochs{}
		started(t, cfg)
		cfg.Epochs = epochStore(func(context.Context, int64) (int64, error) { return 0, errors.New("PostgreSQL is away") })
		l := locker(t, cfg)
		var begun [2]string
		for i := range begun {
			nodes[1].Restart(t)
			reconnect(t, l)
			if _, err := l.BeginAdmission(t.Context(), "node-2"); err == nil || errors.Is(err, lock.ErrQuarantined) {
				t.Errorf("begin %d: %v", i+1, err)
			}
			begun[i] = hashField(t, nodes[1], "@pending")
		}
		if begun[0] == begun[1] {
			t.Error("the same admission in two runs")
		}
	})
}

// admissions watches a node in a bubble, and returns how many of its admissions were begun until stop.
func admissions(t *testing.T, n *memredis.Node) (stop func() int) {
	t.Helper()
	begun, ended := make(map[string]bool), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		for c := n.Client(t); ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			if nonce, err := c.HGet(t.Context(), hashKey, "@pending").Result(); err == nil {
				begun[nonce] = true
			}
		}
	}()
	return func() int {
		cancel()
		<-ended
		return len(begun)
	}
}

// copying is a connection to a node on which each call that copies locks takes a time.
type copying struct {
	net.Conn

	takes time.Duration
}

func (c copying) Write(b []byte) (int, error) {
	if bytes.Count(b, []byte(lockKey(""))) > 1 {
		time.Sleep(c.takes)
	}
	return c.Conn.Write(b)
}

// Several processes admit the same node. Copying many locks takes longer than the interval of their checks, but none of
// them replaces an admission that another one is completing. If it takes longer than their patience, the next one gets
// more of it.
func TestProcessesLetEachOtherAdmitANodeWithManyLocks(t *testing.T) {
	t.Parallel()
	for copies, want := range map[time.Duration]int{
		lock.EndPatience * 8 / 10: 1,
		// One of the others replaces the first admission, the first process that one, and each waits longer now.
		lock.EndPatience * 18 / 10: 3,
	} {
		t.Run(fmt.Sprintf("copied within %v", copies), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 3)
				cfg.Epochs = &epochs{}
				cfg.Nodes[1].Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := nodes[1].Dial(ctx, network, addr)
					return copying{conn, copies / 2}, err
				}
				all := []*lock.Locker{started(t, cfg), locker(t, cfg), locker(t, cfg)}
				leases := func() { // which are renewed; they take two calls
					for _, n := range []*memredis.Node{nodes[0], nodes[2]} {
						pipe := n.Client(t).Pipeline()
						for i := range 260 {
							pipe.Set(t.Context(), lockKey(fmt.Sprint(i)), fmt.Sprintf("%032xholder", i), lock.DefaultTTL)
						}
						_, err := pipe.Exec(t.Context())
						must(t, err)
					}
				}
				leases()
				forgets(t, nodes[1])
				stop := admissions(t, nodes[1])
				ctx, cancel := context.WithTimeout(t.Context(), 20*lock.EndPatience)
				defer cancel()
				errs := make(chan error)
				for _, l := range all {
					go func() { errs <- admin.Of(l).Admit(ctx, "node-2") }()
				}
				for range all {
					for admitted := false; !admitted; {
						select {
						case err := <-errs:
							must(t, err)
							admitted = true
						case <-time.After(lock.DefaultTTL / 3):
							leases()
						}
					}
				}
				if begun := stop(); begun != want {
					t.Errorf("%d admissions were begun; want %d", begun, want)
				}
				if copied := len(nodes[1].Client(t).Keys(t.Context(), lockKey("*")).Val()); copied != 260 {
					t.Errorf("the node has %d locks", copied)
				}
			})
		})
	}
}

// If a process ended during its admission, another one begins a new one after its patience.
func TestAnAdmissionThatNobodyEndsIsBegunAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		forgets(t, nodes[1])
		left, err := l.BeginAdmission(t.Context(), "node-2")
		must(t, err)
		must(t, l.EndQuarantine(t.Context(), "node-2"))
		begun := time.Now()
		must(t, admin.Of(locker(t, cfg)).Admit(t.Context(), "node-2"))
		lasted(t, "admitted after", time.Since(begun), lock.EndPatience, lock.EndPatience/2+2*time.Second)
		if is := hashField(t, nodes[1], "@incarnation"); is == left.Nonce {
			t.Error("the admission that was left has ended")
		}
	})
}

// choosy is an Armer of a process that may not admit nodes at first.
type choosy struct {
	register

	may   atomic.Bool
	asked atomic.Int64
}

func (c *choosy) MayAdmit(context.Context) error {
	c.asked.Add(1)
	if c.may.Load() {
		return nil
	}
	return errors.New("the keys are another database's")
}

func TestNoNodeIsAdmittedWhereTheArmerRefusesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		cfg.Epochs = &epochs{}
		must(t, started(t, cfg).Close())
		armer := &choosy{}
		cfg.Armer = armer
		l := locker(t, cfg)
		nodes[1].Lose(t)
		must(t, admin.Of(l).Init(t.Context())) // a quorum is there
		asked := armer.asked.Load()
		time.Sleep(lock.DefaultMaxTTL)
		if armer.asked.Load() <= asked+1 {
			t.Error("the lost node was not found twice")
		}
		if keys := nodes[1].Client(t).Keys(t.Context(), "*").Val(); len(keys) > 0 {
			t.Errorf("the node has %q", keys)
		}
		armer.may.Store(true)
		time.Sleep(5 * time.Second)
		if st := admin.Of(l).Status(t.Context())[1]; !st.Admitted {
			t.Errorf("%+v", st)
		}
	})
}

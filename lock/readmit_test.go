package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
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
			cfg, servers := own(t, 3, redisserver.Config{})
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
			restart(t, servers[1], nil)
			if err := patiently(ctx, func() error { return l.Admit(ctx, "node-2") }); err == nil || !failed {
				t.Fatalf("readmit: %v", err)
			}
			pending := func() string {
				return client(t, servers[1].Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "@pending").Val()
			}
			begun := pending()
			readmit(t, l, "node-2")
			if is := client(t, servers[1].Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "@incarnation").Val(); is != begun || begun == "" {
				t.Errorf("begun as %q, admitted as %q", begun, is)
			}
			after := acquire(t, l, "r")
			if token(t, after) <= before.Ref().Token {
				t.Errorf("token %d after %d", token(t, after), before.Ref().Token)
			}
			release(t, after)
		})
	}
}

// An admission is not continued if the node was restarted since it began.
func TestAnAdmissionThatAnErrorStoppedIsVoidAfterARestart(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs = &epochs{}
	started(t, cfg)
	cfg.Epochs = epochStore(func(context.Context, int64) (int64, error) { return 0, errors.New("PostgreSQL is away") })
	l := locker(t, cfg)
	restart(t, servers[1], nil)
	var begun [2]string
	for i := range begun {
		if _, err := admitBegin(t, l, "node-2"); err == nil || errors.Is(err, lock.ErrQuarantined) {
			t.Errorf("begin %d: %v", i+1, err)
		}
		begun[i] = client(t, servers[1].Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "@pending").Val()
		restart(t, servers[1], nil)
	}
	if begun[0] == begun[1] {
		t.Error("the same admission in two runs")
	}
}

// Several processes admit the same node. Reading and copying many locks takes longer than the interval of their
// checks, but none of them replaces an admission that another one is completing.
func TestProcessesLetEachOtherAdmitANodeWithManyLocks(t *testing.T) {
	t.Parallel()
	// On a busy machine the nodes tell so many locks too slowly for a query, or for the others' patience.
	for locks := 8000; ; locks /= 2 {
		begun, err := admittedByThree(t, locks)
		switch {
		case err == nil && begun == 1:
			return
		case err == nil:
			t.Fatalf("%d admissions were begun", begun)
		case locks < 1000:
			t.Fatal(err)
		}
		t.Logf("%d locks: %v", locks, err)
	}
}

// admittedByThree lets three processes admit the same node, and counts the admissions that they begin. An error says
// that it took too long.
func admittedByThree(t *testing.T, locks int) (admissions int, err error) {
	t.Helper()
	const ttl = 3 * time.Second
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.Epochs = &epochs{}
	all := []*lock.Locker{started(t, cfg), locker(t, cfg), locker(t, cfg)}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	keep := func() { // leases that are renewed
		for _, i := range []int{0, 2} {
			pipe := client(t, servers[i].Addr).Pipeline()
			for j := range locks {
				pipe.Set(ctx, fmt.Sprintf("%s:lock:%d", cfg.KeyPrefix, j), fmt.Sprintf("%032xholder", j), ttl)
			}
			_, _ = pipe.Exec(ctx)
		}
	}
	keep()
	restart(t, servers[1], nil)
	var readmits, looks sync.WaitGroup
	errs := make([]error, len(all))
	since := time.Now()
	for i, l := range all {
		readmits.Go(func() {
			errs[i] = patiently(ctx, func() error { return l.Admit(ctx, "node-2") })
			if err := errs[i]; err != nil && ctx.Err() == nil {
				t.Errorf("process %d: %v", i+1, err)
			}
		})
	}
	over, stop := context.WithCancel(ctx)
	begun := make(map[string]bool)
	looks.Go(func() {
		look, renew := time.NewTicker(10*time.Millisecond), time.NewTicker(ttl/3)
		defer look.Stop()
		defer renew.Stop()
		for admin := client(t, servers[1].Addr); over.Err() == nil; {
			select {
			case <-renew.C:
				keep()
			case <-look.C:
				if nonce := admin.HGet(over, cfg.KeyPrefix+":h", "@pending").Val(); nonce != "" {
					begun[nonce] = true
				}
			case <-over.Done():
			}
		}
	})
	readmits.Wait()
	stop()
	looks.Wait()
	err = errors.Join(errs...)
	if took := time.Since(since); err == nil && len(begun) > 1 && took > lock.EndPatience {
		err = fmt.Errorf("%d admissions were begun in %v", len(begun), took)
	}
	return len(begun), err
}

// If a process ended during its admission, another one begins a new one after its patience.
func TestAnAdmissionThatNobodyEndsIsBegunAnew(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.Epochs = &epochs{}
	l := started(t, cfg)
	restart(t, servers[1], nil)
	left, err := admitBegin(t, l, "node-2")
	must(t, err)
	must(t, l.EndQuarantine(t.Context(), "node-2"))
	second := locker(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	readmitted := make(chan error, 1)
	go func() { readmitted <- patiently(ctx, func() error { return second.Admit(ctx, "node-2") }) }()
	eventually(t, 20*time.Second, "it waits for the other", func() bool { return second.Impatient("node-2") })
	must(t, <-readmitted)
	if is := client(t, servers[1].Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "@incarnation").Val(); is == left.Nonce() {
		t.Error("the admission that was left has ended")
	}
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
	cfg, servers := own(t, 3, redisserver.Config{})
	cfg.Epochs = &epochs{}
	must(t, started(t, cfg).Close())
	armer := &choosy{}
	cfg.Armer = armer
	l := locker(t, cfg)
	restart(t, servers[1], nil)
	initialise(t, l) // a quorum is there
	asked := armer.asked.Load()
	eventually(t, 20*time.Second, "the lost node is found twice", func() bool { return armer.asked.Load() > asked+1 })
	if keys := client(t, servers[1].Addr).Keys(t.Context(), "*").Val(); len(keys) > 0 {
		t.Errorf("the node has %q", keys)
	}
	armer.may.Store(true)
	eventually(t, 20*time.Second, "the node is admitted", func() bool { return status(t, l)[1].Admitted })
}

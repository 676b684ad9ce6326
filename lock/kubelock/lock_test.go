package kubelock_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock/clocktest"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/kubelock"
)

func TestABadConfigIsRefused(t *testing.T) {
	t.Parallel()
	good, _ := config(t, newAPIServer(t), "a")
	for name, spoil := range map[string]func(*kubelock.Config){
		"no client":        func(c *kubelock.Config) { c.Client = nil },
		"no namespace":     func(c *kubelock.Config) { c.Lease.Namespace = "" },
		"no name":          func(c *kubelock.Config) { c.Lease.Name = "" },
		"no resource":      func(c *kubelock.Config) { c.Resource = "" },
		"identity":         func(c *kubelock.Config) { c.Identity = "a\nb" },
		"half seconds":     func(c *kubelock.Config) { c.LeaseDuration = 1500 * time.Millisecond },
		"renewed too late": func(c *kubelock.Config) { c.RenewDeadline = kubelock.DefaultLeaseDuration },
		"tried too rarely": func(c *kubelock.Config) { c.RetryPeriod = kubelock.DefaultRenewDeadline },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := kubelock.New(cfg); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
		}
	}
	if _, err := newLock(t, good).Grant(); !errors.Is(err, kubelock.ErrNotLeading) {
		t.Errorf("a grant before the election: %v", err)
	}
}

func TestARenewalKeepsTheToken(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		cfg, _ := config(t, s, "a")
		lead(t.Context(), t, cfg)
		time.Sleep(3 * kubelock.DefaultLeaseDuration)
		if n := len(s.history()); n < 10 {
			t.Errorf("%d versions of the Lease", n)
		}
		for _, version := range s.history() {
			if version.Annotations[kubelock.Annotation] != "1" {
				t.Errorf("a renewal wrote %q", version.Annotations)
			}
		}
	})
}

// The machine is suspended before the answers come. Candidates count from when the API server receives an update, which may
// be when it was sent.
func TestTheDeadlineCountsFromBeforeTheUpdateIsSent(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		cfg, n := config(t, s, "a")
		const late = 5 * time.Second
		clock := cfg.WithClock()
		n.lose = func(*http.Request) bool { clock.Suspend(late); return false }
		lock := newLock(t, cfg)
		// the Lease is taken, and renewed
		for _, write := range []func(context.Context, resourcelock.LeaderElectionRecord) error{lock.Create, lock.Update} {
			if err := write(t.Context(), record); err != nil {
				t.Fatal(err)
			}
			if left := kubelock.Deadline(lock).Left(); left > kubelock.DefaultLeaseDuration-late || left < kubelock.DefaultLeaseDuration-2*late {
				t.Errorf("%v after its update was sent, the term has %v left", late, left)
			}
		}
	})
}

// record is that of a candidate that takes a Lease or renews it.
var record = resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: int(kubelock.DefaultLeaseDuration.Seconds())}

// The update is carried out, and its answer arrives when the term is over.
func TestARenewalThatIsAnsweredTooLateRevivesNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*kubelock.Lock, *clocktest.Clock){
		"ran out":   func(lock *kubelock.Lock, _ *clocktest.Clock) { <-lock.Context().Done() },
		"released":  func(lock *kubelock.Lock, _ *clocktest.Clock) { kubelock.Lose(lock) },
		"suspended": func(lock *kubelock.Lock, clock *clocktest.Clock) { clock.Suspend(kubelock.Deadline(lock).Left()) },
	} {
		electing(t, func(t *testing.T, s *apiServer) {
			cfg, n := config(t, s, "a")
			clock := cfg.WithClock()
			lock := newLock(t, cfg)
			if err := lock.Create(t.Context(), record); err != nil {
				t.Fatal(err)
			}
			ends := kubelock.Deadline(lock)
			n.mu.Lock()
			n.lose = func(*http.Request) bool { end(lock, clock); return false }
			n.mu.Unlock()
			if err := lock.Update(t.Context(), record); !errors.Is(err, leasing.ErrLost) || kubelock.Deadline(lock) != ends {
				t.Errorf("%s: %v; the deadline moved by %v", name, err, kubelock.Deadline(lock).Time().Sub(ends.Time()))
			}
		})
	}
}

// The timers stood still with the machine; other candidates have counted on.
func TestALeadershipIsOverAfterASuspensionThatNoTimerNoticed(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		cfg, _ := config(t, s, "a")
		clock := cfg.WithClock()
		lock := newLock(t, cfg)
		if err := lock.Create(t.Context(), record); err != nil {
			t.Fatal(err)
		}
		if _, err := lock.Grant(); err != nil {
			t.Errorf("before the suspension: %v", err)
		}
		clock.Suspend(kubelock.DefaultLeaseDuration)
		if ctx := lock.Context(); ctx.Err() == nil || !errors.Is(context.Cause(ctx), leasing.ErrLost) {
			t.Errorf("its context: %v, %v", ctx.Err(), context.Cause(ctx))
		}
		if _, err := lock.Grant(); !errors.Is(err, leasing.ErrLost) {
			t.Errorf("its grant: %v; want ErrLost", err)
		}
	})
}

func TestADeletedLeaseEndsTheLeadership(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		cfg, _ := config(t, s, "a")
		l := lead(t.Context(), t, cfg)
		s.remove(leaseName)
		await(t, "the end of the work", l.ctx.Done())
		if err := l.end(); !errors.Is(err, leasing.ErrLost) || s.lease(leaseName) != nil {
			t.Errorf("%v; the Lease is %v", err, s.lease(leaseName))
		}
	})
}

// An elector keeps using its Lock after the end of a term. Nothing is taken, renewed or created.
func TestATermThatIsOverIsNotRevived(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *apiServer, lock *kubelock.Lock){
		"deleted":  func(s *apiServer, _ *kubelock.Lock) { s.remove(leaseName) },
		"ran out":  func(_ *apiServer, lock *kubelock.Lock) { <-lock.Context().Done() },
		"released": func(_ *apiServer, lock *kubelock.Lock) { _ = lock.Release(context.Background()) },
	} {
		electing(t, func(t *testing.T, s *apiServer) {
			cfg, _ := config(t, s, "a")
			lock := newLock(t, cfg)
			if err := lock.Create(t.Context(), record); err != nil {
				t.Fatal(err)
			}
			end(s, lock)
			writes := len(s.history())
			_, _, err := lock.Get(t.Context())
			again := lock.Update
			if err != nil {
				again = lock.Create
			}
			if err := again(t.Context(), record); !errors.Is(err, leasing.ErrLost) || len(s.history()) != writes || lock.Context().Err() == nil {
				t.Errorf("%s: %v; %d writes more", name, err, len(s.history())-writes)
			}
		})
	}
}

// client-go treats an identity that it finds in the Lease as its own.
func TestASecondProcessOfOneIdentityEndsTheFirstOnesLeadership(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		cfg, _ := config(t, s, "a")
		first := lead(t.Context(), t, cfg)
		second := lead(t.Context(), t, cfg)
		await(t, "the end of the first one's work", first.ctx.Done())
		if err := first.end(); !errors.Is(err, leasing.ErrLost) || second.grant.Token != 2 {
			t.Errorf("%v; the second has token %d", err, second.grant.Token)
		}
		if s.holder(leaseName) != "a" {
			t.Error("the first one released the second one's Lease")
		}
	})
}

// An elector that could not renew in time resumes, with client-go's LeaseLock and with this package's Lock.
func TestAnElectorThatWasPausedSparesItsSuccessorsLease(t *testing.T) {
	t.Parallel()
	for name, ours := range map[string]bool{"kubelock": true, "client-go": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			electing(t, func(t *testing.T, s *apiServer) {
				cfg, n := config(t, s, "a")
				var lock resourcelock.Interface = newLock(t, cfg)
				if !ours {
					lock = &resourcelock.LeaseLock{
						LeaseMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: leaseName}, Client: cfg.Client,
						LockConfig: resourcelock.ResourceLockConfig{Identity: "a"},
					}
				}
				cancel, ended := elect(t, lock, true)
				restore := n.cut()
				defer restore()
				s.give(leaseName, "b") // the successor; the paused elector has not seen its Lease
				cancel()
				restore()
				await(t, "the end of the elector", ended)
				if spared := s.holder(leaseName) == "b"; spared != ours {
					t.Errorf("spared the successor's Lease: %v; held by %q", spared, s.holder(leaseName))
				}
			})
		})
	}
}

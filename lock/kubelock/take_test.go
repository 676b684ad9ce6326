package kubelock_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/kubelock"
)

// The test shows client-go's LeaseLock with one identity that takes the Lease again after a crash, and with a Lease
// that is created again.
func TestLeaseTransitionsAreNoFencingTokens(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		cfg, _ := config(t, s, "a")
		var seen []int32
		term := func() {
			lock := &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: leaseName}, Client: cfg.Client,
				LockConfig: resourcelock.ResourceLockConfig{Identity: "a"},
			}
			crash(t, lock)
			seen = append(seen, *s.lease(leaseName).Spec.LeaseTransitions)
		}
		term()
		term()
		s.remove(leaseName)
		term()
		if seen[0] != seen[1] || seen[1] != seen[2] {
			t.Errorf("transitions %v: they no longer repeat, and the documentation says that they do", seen)
		}
	})
}

func TestTheTokenRisesWhereLeaseTransitionsRepeat(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		m := &memory{}
		cfg, _ := config(t, s, "a")
		cfg.Armer = m
		transitions := make(map[int32]int)
		for want := fence.Token(1); want <= 4; want++ {
			if want == 4 {
				s.remove(leaseName)
			}
			lock := newLock(t, cfg)
			crash(t, lock) // nothing is released
			grant, err := lock.Grant()
			if err != nil || grant.Token != want {
				t.Fatalf("grant %v, %v; want token %d", grant, err, want)
			}
			transitions[*s.lease(leaseName).Spec.LeaseTransitions]++
		}
		if transitions[0] != 4 {
			t.Errorf("transitions %v; want 0 four times", transitions)
		}
	})
}

// The update that takes the Lease writes the token; no version of the Lease has a lower one.
func TestADeletedLeaseIsCreatedAboveTheRecordedToken(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		m := &memory{record: fence.Record{Token: 41}}
		cfg, _ := config(t, s, "a")
		cfg.Armer = m
		l := lead(t.Context(), t, cfg)
		if first := s.history()[0].Annotations[kubelock.Annotation]; first != "42" || l.grant.Token != 42 {
			t.Errorf("created with %q, granted %d; want 42", first, l.grant.Token)
		}
	})
}

func TestAFenceThatCannotBeAskedRaisesTheTokenInPlace(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		m := &memory{record: fence.Record{Token: 41}}
		cfg, _ := config(t, s, "a")
		cfg.Armer = onlyArms{m}
		l := lead(t.Context(), t, cfg)
		if l.grant.Token != 42 || s.lease(leaseName).Annotations[kubelock.Annotation] != "42" {
			t.Errorf("granted %d, annotated %q; want 42", l.grant.Token, s.lease(leaseName).Annotations)
		}
	})
}

func TestTheAnnotationCountsWhereTheFenceIsLower(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		m := &memory{}
		s.put(leaseName, map[string]string{kubelock.Annotation: "99", "other": "stays"})
		cfg, _ := config(t, s, "a")
		cfg.Armer = m
		l := lead(t.Context(), t, cfg)
		if l.grant.Token != 100 || s.lease(leaseName).Annotations["other"] != "stays" {
			t.Errorf("granted %d, annotations %v", l.grant.Token, s.lease(leaseName).Annotations)
		}
	})
}

func TestTheFenceIsArmedBeforeTheWorkBegins(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		m := &memory{}
		cfg, _ := config(t, s, "a")
		cfg.Armer = m
		err := kubelock.Run(t.Context(), cfg, func(_ context.Context, grant fence.Grant) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			if len(m.arms) != 1 || m.arms[0].Token != grant.Token || string(m.arms[0].SealHash) != string(grant.Seal.Hash()) || m.arms[0].Holder != "a" {
				t.Errorf("armed %+v for %v", m.arms, grant)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestAnArmerThatFailsGivesTheLeaseBack(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		m := &memory{err: errAway}
		cfg, _ := config(t, s, "a")
		cfg.Armer = m
		err := kubelock.Run(t.Context(), cfg, func(context.Context, fence.Grant) error {
			t.Error("the work began")
			return nil
		})
		if !errors.Is(err, errAway) || s.holder(leaseName) != "" {
			t.Errorf("%v; held by %q", err, s.holder(leaseName))
		}
	})
}

func TestWhatIsNoTokenIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "abc", "-1", "9223372036854775807"} {
		electing(t, func(t *testing.T, s *apiServer) {
			s.put(leaseName, map[string]string{kubelock.Annotation: text})
			cfg, _ := config(t, s, "a")
			err := kubelock.Run(t.Context(), cfg, nil)
			if token, ok := errors.AsType[*kubelock.TokenError](err); !ok || token.Text != text || len(s.history()) > 0 {
				t.Errorf("%q: %v; %d writes", text, err, len(s.history()))
			}
		})
	}
}

// A taking whose answer was lost is repeated with a new token. If the candidate has stopped, the Lease is given back.
func TestATakingWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		m := &memory{}
		cfg, n := config(t, s, "a")
		cfg.Armer = m
		lost := make(chan struct{}, 1)
		n.lose = func(r *http.Request) bool {
			if r.Method == http.MethodGet {
				return false
			}
			select {
			case lost <- struct{}{}:
				return true
			default:
				return false
			}
		}
		l := lead(t.Context(), t, cfg)
		if l.grant.Token != 2 || m.record.Token != 2 {
			t.Errorf("granted %d, armed %d; want 2", l.grant.Token, m.record.Token)
		}
		if err := l.end(); err != nil {
			t.Error(err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		n.mu.Lock()
		n.lose = func(r *http.Request) bool {
			if r.Method == http.MethodPut && ctx.Err() == nil {
				cancel()
				return true
			}
			return false
		}
		n.mu.Unlock()
		if err := kubelock.Run(ctx, cfg, nil); !errors.Is(err, context.Canceled) || errors.Is(err, leasing.ErrLost) {
			t.Error(err)
		}
		if s.holder(leaseName) != "" {
			t.Errorf("held by %q after its caller had gone", s.holder(leaseName))
		}
	})
}

// The API server frees the Lease, and its answer is lost. Another may lead before the release looks again.
func TestAReleaseWhoseAnswerWasLostIsDone(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(s *apiServer){
		"nobody leads":  func(*apiServer) {},
		"another leads": func(s *apiServer) { s.give(leaseName, "b") },
		"it is deleted": func(s *apiServer) { s.remove(leaseName) },
	} {
		electing(t, func(t *testing.T, s *apiServer) {
			m := &memory{}
			cfg, n := config(t, s, "a")
			cfg.Armer = m
			l := lead(t.Context(), t, cfg)
			lost := make(chan struct{}, 1)
			n.mu.Lock()
			n.lose = func(r *http.Request) bool {
				if r.Method != http.MethodPut || s.holder(leaseName) != "" || len(lost) > 0 {
					return false
				}
				lost <- struct{}{}
				after(s)
				return true
			}
			n.mu.Unlock()
			if err := l.end(); err != nil || len(lost) == 0 {
				t.Errorf("%s: %v, %d answers were lost; want nil: the leadership was not lost", name, err, len(lost))
			}
		})
	}
}

// No answer is lost.
func TestAReleaseAfterAnotherTookTheLeaseSaysSo(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		m := &memory{}
		cfg, _ := config(t, s, "a")
		cfg.Armer = m
		l := lead(t.Context(), t, cfg)
		s.give(leaseName, "b")
		if err := l.end(); !errors.Is(err, leasing.ErrLost) {
			t.Errorf("%v; want ErrLost: another has taken the Lease", err)
		}
	})
}

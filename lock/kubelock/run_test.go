package kubelock_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/kubelock"
)

// database returns a fence, and a function that writes to a guarded table as a leader does.
func database(t testing.TB) (armer *pgfence.Fence, write func(fence.Grant) error) {
	t.Helper()
	pg := testenv.Postgres(t)
	admin := pg.Pool(t)
	for _, sql := range []string{
		`CREATE TABLE orders (token bigint)`, `GRANT ALL ON orders TO PUBLIC`, `SELECT fence.protect('orders', resource => '` + resource + `')`,
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	writers := testenv.PoolOf(t, pg.WriterURL)
	return pgfence.New(testenv.PoolOf(t, pg.GatewayURL)), func(grant fence.Grant) error {
		return pgfence.InTx(t.Context(), writers, grant, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO orders VALUES ($1)`, grant.Token)
			return err
		})
	}
}

// The first leader loses the API server, and does not learn that its Lease was deleted and that a second one leads.
func TestALeaderThatWasSupersededIsRefusedByTheFence(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t)
	armer, write := database(t)
	first, n := config(t, s, "a")
	second, _ := config(t, s, "b")
	first.LeaseDuration, first.RenewDeadline = 2*patience, patience // it leads on
	first.Armer, second.Armer = armer, armer
	a := lead(t.Context(), t, first)
	if err := write(a.grant); err != nil {
		t.Fatal(err)
	}
	defer n.cut()()
	s.remove(leaseName)
	b := lead(t.Context(), t, second)
	if a.ctx.Err() != nil {
		t.Errorf("the first one knows that it does not lead, so this shows nothing: %v", context.Cause(a.ctx))
	}
	if err := write(a.grant); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the first one's write: %v; want ErrStale", err)
	}
	if err := write(b.grant); err != nil || b.grant.Token <= a.grant.Token {
		t.Errorf("the second one's write: %v; token %d after %d", err, b.grant.Token, a.grant.Token)
	}
}

// The first leader loses the API server.
func TestASecondOneLeadsOnlyAfterTheFirstOnesWorkWasTold(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		first, n := config(t, s, "a")
		second, _ := config(t, s, "b")
		a := lead(t.Context(), t, first)
		waiting := start(t.Context(), t, second)
		time.Sleep(kubelock.DefaultLeaseDuration)
		defer n.cut()()
		cut := time.Now()
		ended := make(chan time.Duration, 1)
		context.AfterFunc(a.ctx, func() { ended <- time.Since(cut) })
		await(t, "leads", waiting.leads)
		leads := time.Since(cut)
		if after := <-ended; after >= leads || after > kubelock.DefaultLeaseDuration || leads > 2*kubelock.DefaultLeaseDuration {
			t.Errorf("the first one's work ended after %v; the second one led after %v", after, leads)
		}
		if !errors.Is(context.Cause(a.ctx), leasing.ErrLost) {
			t.Error(context.Cause(a.ctx))
		}
	})
}

func TestWorkEndsBeforeTheLeaseIsGivenBack(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t)
	armer, write := database(t)
	cfg, _ := config(t, s, "a")
	cfg.Armer = armer
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var grant fence.Grant
	err := kubelock.Run(ctx, cfg, func(ctx context.Context, g fence.Grant) error {
		grant = g
		cancel()
		<-ctx.Done()
		if s.holder(leaseName) != "a" {
			t.Error("the Lease was given back while work ran")
		}
		return write(g)
	})
	if err != nil {
		t.Error(err)
	}
	if s.holder(leaseName) != "" {
		t.Errorf("held by %q after the work", s.holder(leaseName))
	}
	if err := write(grant); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a write after the release: %v; want ErrStale", err)
	}
}

// Nobody took the Lease. The leader's context has ended, so the leadership is over.
func TestALeadershipThatRanOutIsNotRevived(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		cfg, n := config(t, s, "a")
		l := lead(t.Context(), t, cfg)
		restore := n.cut()
		defer restore()
		await(t, "the end of the work", l.ctx.Done())
		restore()
		if err := l.end(); !errors.Is(err, leasing.ErrLost) || s.holder(leaseName) != "" {
			t.Errorf("%v; held by %q", err, s.holder(leaseName))
		}
	})
}

// timedOutWait returns Run's error from a wait that ends after a few tries.
func timedOutWait(t testing.TB, cfg kubelock.Config, n *network) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := start(ctx, t, cfg)
	until(t, "tries", func() bool { return n.requests() > 2 })
	cancel()
	await(t, "the end of the wait", l.ended)
	return l.err
}

func TestAWaitThatEndsSaysWhoLeads(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		cfg, _ := config(t, s, "a")
		lead(t.Context(), t, cfg)
		other, n := config(t, s, "b")
		err := timedOutWait(t, other, n)
		held, ok := errors.AsType[*leasing.HeldError](err)
		if !ok || held.Holder != "a" || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestACandidateWaitsWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		cfg, n := config(t, s, "a")
		const away = "kubernetes.example:6443"
		gone := cfg
		var nowhere *network
		gone.Client, nowhere = clientOver(t, refusing{}, "https://"+away, "candidate")
		if err := timedOutWait(t, gone, nowhere); !errors.Is(err, leasing.ErrUnavailable) || !errors.Is(err, context.Canceled) ||
			!strings.Contains(err.Error(), away) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q; want one line that names %s", err, away)
		}
		var mu sync.Mutex
		failed := 0
		n.lose = func(*http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			failed++
			return failed <= 5
		}
		if l := lead(t.Context(), t, cfg); l.end() != nil {
			t.Error(l.err)
		}
	})
}

// refusing refuses every connection.
type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED }

func TestWhatOnlyAnOperatorCorrectsIsSaidInOneLine(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t)
	for name, c := range map[string]struct {
		token, namespace, want string
		stranger               bool
	}{
		"no right":                             {token: "other", namespace: s.namespace, want: "allow get, create and update"},
		"no login":                             {token: "nobody", namespace: s.namespace, want: "check the credentials"},
		"no namespace":                         {token: "candidate", namespace: "absent", want: `namespaces "absent" not found`},
		"no Kubernetes, or one without Leases": {token: "candidate", namespace: s.namespace, want: "is this the API server", stranger: true},
	} {
		cfg, _ := config(t, s, "a")
		cfg.Client, _ = s.client(t, c.token)
		if c.stranger {
			cfg.Client, _ = clientOver(t, handler{http.NotFound}, "http://stranger", c.token)
		}
		cfg.Lease.Namespace = c.namespace
		err := kubelock.Run(t.Context(), cfg, nil)
		if !errors.Is(err, leasing.ErrUnavailable) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(s.history()) > 0 {
		t.Error("something was written")
	}
}

// Four processes lead in turn. Each term's token is unique and above those before.
func TestTokensRiseWithTheTerms(t *testing.T) {
	t.Parallel()
	electing(t, func(t *testing.T, s *apiServer) {
		const processes, terms = 4, 3
		m := &memory{}
		var mu sync.Mutex
		var tokens []fence.Token
		leading := 0
		var all sync.WaitGroup
		for i := range processes {
			cfg, _ := config(t, s, string(rune('a'+i)))
			cfg.Armer = m
			all.Go(func() {
				for range terms {
					err := kubelock.Run(t.Context(), cfg, func(_ context.Context, grant fence.Grant) error {
						mu.Lock()
						tokens = append(tokens, grant.Token)
						leading++
						if leading > 1 {
							t.Error("two lead")
						}
						mu.Unlock()
						time.Sleep(kubelock.DefaultRetryPeriod * 3 / 2) // the others look at the Lease
						mu.Lock()
						defer mu.Unlock()
						leading--
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		for i := 1; i < len(tokens); i++ {
			if tokens[i] <= tokens[i-1] {
				t.Errorf("tokens %v", tokens)
			}
		}
		if len(tokens) != processes*terms {
			t.Errorf("%d terms", len(tokens))
		}
	})
}

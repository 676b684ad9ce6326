package kubelock_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

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

// The first leader loses the API server, and writes after a second one leads.
func TestAPausedLeaderIsRefusedByTheFence(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t)
	armer, write := database(t)
	first, n := config(t, s, "a")
	second, _ := config(t, s, "b")
	first = short(first)
	first.Armer, second.Armer = armer, armer
	a := lead(t.Context(), t, first)
	if err := write(a.grant); err != nil {
		t.Fatal(err)
	}
	defer n.cut()()
	b := lead(t.Context(), t, second)
	if a.ctx.Err() == nil {
		t.Error("the second one leads before the first one's work was told")
	}
	if err := write(a.grant); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the first one's write: %v; want ErrStale", err)
	}
	if err := write(b.grant); err != nil || b.grant.Token <= a.grant.Token {
		t.Errorf("the second one's write: %v; token %d after %d", err, b.grant.Token, a.grant.Token)
	}
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

// Nobody took the Lease meanwhile. The leader's context has ended, so the leadership is over.
func TestALeadershipThatRanOutIsNotRevived(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t)
	cfg, n := config(t, s, "a")
	l := lead(t.Context(), t, short(cfg))
	mend := n.cut()
	defer mend()
	await(t, "the end of the work", l.ctx.Done())
	mend()
	if err := l.end(); !errors.Is(err, leasing.ErrLost) || s.holder(leaseName) != "" {
		t.Errorf("%v; held by %q", err, s.holder(leaseName))
	}
}

// waitInVain returns Run's error from a wait that ends after a few tries.
func waitInVain(t testing.TB, cfg kubelock.Config, n *network) error {
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
	s := newAPIServer(t)
	cfg, _ := config(t, s, "a")
	lead(t.Context(), t, cfg)
	other, n := config(t, s, "b")
	err := waitInVain(t, other, n)
	held, ok := errors.AsType[*leasing.HeldError](err)
	if !ok || held.Holder != "a" || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestACandidateWaitsWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t)
	cfg, n := config(t, s, "a")
	away := testenv.DeadAddr(t)
	c, nowhere := s.client(t, "http://"+away, "candidate")
	gone := cfg
	gone.Client = c
	if err := waitInVain(t, gone, nowhere); !errors.Is(err, leasing.ErrUnavailable) || !errors.Is(err, context.Canceled) ||
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
}

func TestWhatOnlyAnOperatorMendsIsSaidInOneLine(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t)
	stranger := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(stranger.Close)
	for name, c := range map[string]struct{ host, token, namespace, want string }{
		"no right":                             {s.URL, "other", s.namespace, "allow get, create and update"},
		"no login":                             {s.URL, "nobody", s.namespace, "check the credentials"},
		"no namespace":                         {s.URL, "candidate", "absent", `namespaces "absent" not found`},
		"no Kubernetes, or one without Leases": {stranger.URL, "candidate", s.namespace, "is this the API server"},
	} {
		cfg, _ := config(t, s, "a")
		cfg.Client, _ = s.client(t, c.host, c.token)
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
	const processes, terms = 4, 3
	s, m := newAPIServer(t), &memory{}
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
}

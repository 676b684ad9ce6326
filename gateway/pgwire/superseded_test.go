//go:build unix

package pgwire_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

// fences stand for PostgreSQL's records.
type fences struct {
	mu     sync.Mutex
	tokens map[string]fence.Token
	err    error
	asked  int
}

func (f *fences) read(_ context.Context, resources []string) (map[string]fence.Token, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	found := make(map[string]fence.Token)
	for _, r := range resources {
		if token, ok := f.tokens[r]; ok {
			found[r] = token
		}
	}
	return found, f.err
}

func (f *fences) set(resource string, token fence.Token, err error) (asked int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokens[resource], f.err = token, err
	return f.asked
}

// awaitLook waits until the fences have been queried after now, with an answer.
func (f *fences) awaitLook(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	before := f.asked
	f.mu.Unlock()
	testenv.Eventually(t, "the fences are asked twice", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.asked >= before+2
	})
}

const someSeal = "00112233445566778899aabbccddeeff"

func (w *world) carrying(options string) *pgx.Conn {
	w.t.Helper()
	cfg := w.config(w.pg.WriterURL)
	cfg.RuntimeParams["options"] = options
	return w.connect(cfg)
}

func watching(t *testing.T) (*world, *fences) {
	f := &fences{tokens: map[string]fence.Token{"a b": 34}}
	return setup(t, func(c *pgwire.Config) { c.Fences, c.FencesEvery = f.read, 5*time.Millisecond }), f
}

func TestSupersededSessionLetsGoOfWhatItLocked(t *testing.T) {
	t.Parallel()
	w, f := watching(t)
	if _, err := w.pg.Pool(t).Exec(t.Context(), "CREATE TABLE t (n int); INSERT INTO t VALUES (1); GRANT ALL ON t TO fence_writer"); err != nil {
		t.Fatal(err)
	}
	old := w.carrying("-c fence.resource=a%20b -c fence.token=34." + someSeal)
	if _, err := old.Exec(t.Context(), "BEGIN; SELECT * FROM t FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	f.awaitLook(t)
	if _, err := old.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatalf("under the current grant: %v", err)
	}
	f.set("a b", 35, nil)
	next := w.carrying("-c fence.resource=a%20b -c fence.token=35." + someSeal)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := next.Exec(ctx, "UPDATE t SET n = 2"); err != nil {
		t.Fatalf("the next holder waits for the lock of the one before: %v", err)
	}
	_, err := old.Exec(t.Context(), "COMMIT")
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "ZF001" || refused.Severity != "FATAL" || refused.Hint == "" ||
		refused.Detail != `{"resource":"a b","presented":"34","recorded":"35"}` {
		t.Errorf("the superseded session: %+v", err)
	}
	testenv.Eventually(t, "one session is left", func() bool { return w.srv.Stats().Active == 1 })
	if got := w.srv.Stats().Superseded; got != 1 {
		t.Errorf("%d sessions superseded", got)
	}
}

func TestOtherSessionsGoOn(t *testing.T) {
	t.Parallel()
	w, f := watching(t)
	conns := map[string]*pgx.Conn{
		"current":           w.carrying("-c fence.resource=a%20b -c fence.token=34." + someSeal),
		"newer":             w.carrying("-c fence.resource=a%20b -c fence.token=36." + someSeal),
		"another resource":  w.carrying("-c fence.resource=b -c fence.token=1." + someSeal),
		"no grant":          w.carrying(""),
		"malformed":         w.carrying("-c fence.resource=a%2 -c fence.token=1." + someSeal),
		"one of two":        w.carrying("-c fence.grants=c=9." + someSeal + ",a%20b=35." + someSeal),
		"a seal's own":      w.carrying("-c fence.resource=a%20b -c fence.token=0." + someSeal),
		"while fences fail": w.carrying("-c fence.resource=c -c fence.token=1." + someSeal),
	}
	f.awaitLook(t)
	f.set("c", 0, errors.New("away"))
	f.awaitLook(t)
	for name, conn := range conns {
		if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.set("a b", 36, nil)
	testenv.Eventually(t, "the three that are superseded are ended", func() bool { return w.srv.Stats().Superseded == 3 })
	for name, conn := range conns {
		_, err := conn.Exec(t.Context(), "SELECT 1")
		if ended := name == "current" || name == "one of two" || name == "a seal's own"; ended != (sqlState(err) == "ZF001") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhoArmsEndsTheOlderSessionsAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := w.carrying("-c fence.resource=r -c fence.token=1." + someSeal)
	testenv.Eventually(t, "the session is open", func() bool { return w.srv.Stats().Active == 1 })
	w.srv.Superseded("r", 2)
	if _, err := conn.Exec(t.Context(), "SELECT 1"); sqlState(err) != "ZF001" {
		t.Errorf("%v", fmt.Sprint(err))
	}
}

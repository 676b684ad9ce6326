package pgfence_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

// fault strikes once: at the message with the given number, sent or received, counted from when it is set.
type fault struct {
	left   atomic.Int64
	strike atomic.Pointer[func(net.Conn)]
}

func (f *fault) set(at int, strike func(net.Conn)) {
	f.strike.Store(&strike)
	f.left.Store(int64(at))
}

type faultyConn struct {
	net.Conn
	*fault
}

func (c *faultyConn) step() {
	if c.left.Add(-1) == 0 {
		(*c.strike.Load())(c.Conn)
	}
}

func (c *faultyConn) Write(b []byte) (int, error) {
	c.step()
	return c.Conn.Write(b)
}

func (c *faultyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.step()
	return n, err
}

// pool has one connection with this name, at which the fault may strike.
func (f *fault) pool(t *testing.T, address, name string) *pgxpool.Pool {
	t.Helper()
	return poolWith(t, address, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.RuntimeParams["application_name"] = name
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &faultyConn{Conn: conn, fault: f}, err
		}
	})
}

const nobodyIs = `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database())`

// Whichever message is sent or received when the context ends or the connection breaks, the reported outcome is true,
// and the pool gets its connection back.
func TestWhateverBreaksTheOutcomeIsTrue(t *testing.T) {
	t.Parallel()
	calls := map[string]func(ctx context.Context, pool *pgxpool.Pool, g fence.Grant) error{
		"InTx": func(ctx context.Context, pool *pgxpool.Pool, g fence.Grant) error {
			return pgfence.InTx(ctx, pool, g, func(tx pgx.Tx) error { return write(ctx, tx, g.Token) })
		},
		"InTx that resolves": func(ctx context.Context, pool *pgxpool.Pool, g fence.Grant) error {
			err := pgfence.InTxAll(ctx, pool, pgfence.TxOptions{Resolve: time.Minute}, []fence.Grant{g}, func(tx pgx.Tx) error { return write(ctx, tx, g.Token) })
			if errors.Is(err, fence.ErrUnknown) {
				t.Errorf("it stays unknown: %v", err)
			}
			return err
		},
		"ExecBatch": func(ctx context.Context, pool *pgxpool.Pool, g fence.Grant) error {
			_, err := pgfence.ExecBatch(ctx, pool, pgx.TxOptions{}, []fence.Grant{g}, batchOf(insertWork))
			return err
		},
		"Arm": func(ctx context.Context, pool *pgxpool.Pool, g fence.Grant) error {
			return pgfence.New(pool).Arm(ctx, arming(g))
		},
		"ArmAll": func(ctx context.Context, pool *pgxpool.Pool, g fence.Grant) error {
			return pgfence.New(pool).Arm(ctx, []fence.Arming{arming(g)}...)
		},
	}
	for name, call := range calls {
		for what, strike := range map[string]func(net.Conn, context.CancelFunc){
			"the context ends":      func(_ net.Conn, cancel context.CancelFunc) { cancel() },
			"the connection breaks": func(conn net.Conn, _ context.CancelFunc) { _ = conn.Close() },
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				g := w.acquire(t, orders, 34)
				arms, effects, url := strings.HasPrefix(name, "Arm"), `SELECT count(*) FROM work`, w.pg.WriterURL
				if arms {
					effects, url = `SELECT token FROM fence.resources`, w.pg.GatewayURL
				}
				seen := map[string]int{}
				for step, struck := 1, true; struck; step++ {
					before := value[int](t, w, effects)
					var f fault
					pool := f.pool(t, url, name)
					if err := pool.Ping(t.Context()); err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithCancel(t.Context())
					f.set(step, func(conn net.Conn) { strike(conn, cancel) })
					if arms {
						g = fence.Grant{Resource: orders, Token: g.Token + 1, Seal: fence.NewSeal()}
					}
					err := call(ctx, pool, g)
					cancel()
					struck = f.left.Swap(0) <= 0 // otherwise the call took fewer steps
					ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
					if held, poolErr := pool.Acquire(ctx); poolErr != nil {
						t.Errorf("step %d: the pool has lost its connection: %v; the call said %v", step, poolErr, err)
					} else {
						held.Release()
					}
					cancel()
					pool.Close()
					w.waitFor(t, "the server has noticed", nobodyIs, name)
					done := value[int](t, w, effects) > before
					switch {
					case err == nil && !done:
						t.Errorf("step %d: said done, and it is not", step)
					case err != nil && !errors.Is(err, fence.ErrUnknown) && done:
						t.Errorf("step %d: said not done, and it is: %v", step, err)
					case err == nil:
						seen["done"]++
					case errors.Is(err, fence.ErrUnknown):
						seen["unknown"]++
					default:
						seen["not done"]++
					}
				}
				t.Log(seen)
				if seen["done"] == 0 || seen["not done"] == 0 && !arms {
					t.Errorf("the steps end too early or too late: %v", seen)
				}
			})
		}
	}
}

// A call that can't get a connection has sent nothing, and reports that.
func TestWithoutAConnectionNothingIsUnknown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	one := func(c *pgxpool.Config) { c.MaxConns = 1 }
	writer, gateway := poolWith(t, w.pg.WriterURL, one), poolWith(t, w.pg.GatewayURL, one)
	for _, pool := range []*pgxpool.Pool{writer, gateway} {
		held, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer held.Release()
	}
	f := pgfence.New(gateway)
	for name, call := range map[string]func(context.Context) error{
		"InTx": func(ctx context.Context) error {
			return pgfence.InTx(ctx, writer, g, func(pgx.Tx) error { t.Error("fn ran"); return nil })
		},
		"ExecBatch": func(ctx context.Context) error {
			_, err := pgfence.ExecBatch(ctx, writer, pgx.TxOptions{}, []fence.Grant{g}, batchOf(insertWork))
			return err
		},
		"Arm": func(ctx context.Context) error { return f.Arm(ctx, arming(fence.Grant{Resource: orders, Token: 35})) },
		"ArmAll": func(ctx context.Context) error {
			return f.Arm(ctx, []fence.Arming{arming(fence.Grant{Resource: orders, Token: 35})}...)
		},
		"Revoke": func(ctx context.Context) error { _, err := f.Revoke(ctx, orders, ""); return err },
		"epoch":  func(ctx context.Context) error { _, err := f.RaiseEpoch(ctx, 0); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	if token := value[fence.Token](t, w, `SELECT token FROM fence.resources WHERE resource = $1`, orders); token != 34 {
		t.Errorf("the fence stands at %d", token)
	}
}

func TestInTxRollsBackWhenFnEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = pgfence.InTx(t.Context(), w.writer, g, func(tx pgx.Tx) error {
			_ = write(t.Context(), tx, 34)
			_, _ = tx.Query(t.Context(), `SELECT generate_series(1, 100000)`) //nolint:sqlclosecheck // left open on purpose
			runtime.Goexit()
			return nil
		})
	}()
	<-ended
	// The pool destroys a connection in the background.
	testenv.Eventually(t, "no connection is lost", func() bool { return w.writer.Stat().AcquiredConns() == 0 })
	if n := rows(t, w); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// Missing arguments are reported before anything begins.
func TestMissingArgumentsAreInvalid(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	var noPool *pgxpool.Pool
	_, noBatch := pgfence.ExecBatch(t.Context(), w.writer, pgx.TxOptions{}, []fence.Grant{g}, nil)
	_, nowhere := pgfence.ExecBatch(t.Context(), nil, pgx.TxOptions{}, []fence.Grant{g}, batchOf(insertWork))
	_, longHolder := w.fence.Revoke(t.Context(), orders, strings.Repeat("h", fence.MaxHolderBytes+1))
	_, badHolder := w.fence.Revoke(t.Context(), orders, "a\x00b")
	for name, err := range map[string]error{
		"InTx without fn":      pgfence.InTx(t.Context(), w.writer, g, nil),
		"InTx nowhere":         pgfence.InTx(t.Context(), nil, g, func(pgx.Tx) error { return nil }),
		"Use of a nil tx":      pgfence.Use(t.Context(), nil, g),
		"Check of a nil tx":    pgfence.Check(t.Context(), nil),
		"ExecBatch of nothing": noBatch,
		"ExecBatch nowhere":    nowhere,
		"an overlong holder":   longHolder,
		"a zero byte":          badHolder,
	} {
		if !errors.Is(err, fence.ErrInvalid) || errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if token := value[fence.Token](t, w, `SELECT token FROM fence.resources`); token != 34 || rows(t, w) != 0 {
		t.Errorf("the fence stands at %d, %d rows", token, rows(t, w))
	}
	defer func() {
		if r, _ := recover().(string); !strings.Contains(r, "pgfence.New") {
			t.Errorf("New(nil): %q", r)
		}
	}()
	pgfence.New(noPool)
}

// Neither a grant nor its lock outlives its transaction, however it ends, because the connection is reused.
func TestNothingOfAGrantStaysOnItsConnection(t *testing.T) {
	t.Parallel()
	w := setupMany(t)
	a, b := w.acquire(t, orders, 34), w.acquire(t, users, 1)
	boom := errors.New("boom")
	ways := map[string]func(conn *pgx.Conn, grants []fence.Grant){
		"InTx": func(conn *pgx.Conn, grants []fence.Grant) {
			if err := pgfence.InTxAll(t.Context(), conn, pgfence.TxOptions{}, grants, func(tx pgx.Tx) error { return write(t.Context(), tx, 34) }); err != nil {
				t.Error(err)
			}
		},
		"InTx that fails": func(conn *pgx.Conn, grants []fence.Grant) {
			_ = pgfence.InTxAll(t.Context(), conn, pgfence.TxOptions{}, grants, func(pgx.Tx) error { return boom })
		},
		"InTx that panics": func(conn *pgx.Conn, grants []fence.Grant) {
			defer func() { _ = recover() }()
			_ = pgfence.InTxAll(t.Context(), conn, pgfence.TxOptions{}, grants, func(pgx.Tx) error { panic(boom) })
		},
		"a batch": func(conn *pgx.Conn, grants []fence.Grant) {
			if _, err := pgfence.ExecBatch(t.Context(), conn, pgx.TxOptions{}, grants, batchOf(insertWork)); err != nil {
				t.Error(err)
			}
		},
		"a batch that fails": func(conn *pgx.Conn, grants []fence.Grant) {
			_, _ = pgfence.ExecBatch(t.Context(), conn, pgx.TxOptions{}, grants, batchOf(insertWork, `SELECT 1/0`))
		},
		"Use": func(conn *pgx.Conn, grants []fence.Grant) {
			if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { return pgfence.Use(t.Context(), tx, grants...) }); err != nil {
				t.Error(err)
			}
		},
	}
	for name, way := range ways {
		for _, grants := range [][]fence.Grant{{a}, {a, b}} {
			conn := w.session(t)
			way(conn, grants)
			var left string
			err := conn.QueryRow(t.Context(), `SELECT concat(current_setting('fence.resource', true), current_setting('fence.token', true), current_setting('fence.grants', true),
				current_setting('fence.in_tx', true), (SELECT string_agg(mode, ' ') FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()))`).Scan(&left)
			if err != nil || left != "" {
				t.Errorf("%s of %d: %q stays; %v", name, len(grants), left, err)
			}
			_, err = conn.Exec(t.Context(), insertWork)
			wantCode(t, err, "ZF002")
		}
	}
}

// In each of the driver's execution modes the calls work, or fail before anything is sent.
func TestEveryExecutionModeWorks(t *testing.T) {
	t.Parallel()
	w := setupMany(t)
	a, b := w.acquire(t, orders, 34), w.acquire(t, users, 1)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		pool := poolWith(t, w.pg.WriterURL, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
		f := pgfence.New(poolWith(t, w.pg.GatewayURL, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }))
		for _, grants := range [][]fence.Grant{{a}, {a, b}} {
			before := rows(t, w)
			for range 2 { // the second time uses the prepared statements
				if err := pgfence.InTxAll(t.Context(), pool, pgfence.TxOptions{}, grants, func(tx pgx.Tx) error { return write(t.Context(), tx, 34) }); err != nil {
					t.Errorf("%v: %v", mode, err)
				}
			}
			if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				return errors.Join(pgfence.Use(t.Context(), tx, grants...), pgfence.Check(t.Context(), tx), write(t.Context(), tx, 34))
			}); err != nil {
				t.Errorf("%v: %v", mode, err)
			}
			want := before + 4
			_, err := pgfence.ExecBatch(t.Context(), pool, pgx.TxOptions{}, grants, batchOf(insertWork))
			if mode == pgx.QueryExecModeSimpleProtocol {
				want = before + 3
				if !errors.Is(err, fence.ErrInvalid) {
					t.Errorf("a batch whose seals would be literals: %v", err)
				}
			} else if err != nil {
				t.Errorf("%v: %v", mode, err)
			}
			if n := rows(t, w); n != want {
				t.Errorf("%v: %d rows, want %d", mode, n, want)
			}
		}
		for token := fence.Token(1); token < 3; token++ {
			g := arming(fence.Grant{Resource: mode.String(), Token: token, Seal: fence.NewSeal()})
			if err := errors.Join(f.Arm(t.Context(), g), f.Arm(t.Context(), []fence.Arming{g}...)); err != nil {
				t.Errorf("%v: %v", mode, err)
			}
		}
		if token, err := f.Revoke(t.Context(), mode.String(), "x"); token != 3 || err != nil {
			t.Errorf("%v: %d, %v", mode, token, err)
		}
		if r, err := f.Inspect(t.Context(), mode.String()); r.Token != 3 || err != nil {
			t.Errorf("%v: %+v, %v", mode, r, err)
		}
	}
}

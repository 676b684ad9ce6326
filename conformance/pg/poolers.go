package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/fence/sqlfence/pgxsql"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock/pglock"
)

// poolers are the ways to use PgBouncer with the relay, and the expected results of a write under the current grant
// that is presented by options, by SET, or by fence.use in its transaction; and of another client's write without a
// grant, after a SET. A stale grant is refused where the current one passes.
var poolers = []struct {
	where, mode, ignored          string // ignored: of startup parameters
	options, set, use, afterwards string
}{
	{"in front", "session", "extra_float_digits", unsupported, "ok", "ok", "ZF002"},
	{"in front", "session", "options", "ZF002", "ok", "ok", "ZF002"},
	{"in front", "transaction", "options", "ZF002", "ok", "ok", "ok"},
	{"behind", "session", "extra_float_digits", unsupported, "ok", "ok", "ZF002"},
	{"behind", "session", "options", "ZF002", "ok", "ok", "ZF002"},
	{"behind", "transaction", "options", "ZF002", "ok", "ok", "ok"},
}

// unsupported is PgBouncer's answer to an unknown startup parameter.
const unsupported = "08P01"

// comparePoolers prints a row for each way to use PgBouncer. With every server, a session without options keeps the
// same state, so one client suffices.
func (w *world) comparePoolers(ctx context.Context) (wrong int, err error) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/pgbouncer") // Debian's path
	}
	if err != nil {
		return 0, err
	}
	fmt.Println("\n| PgBouncer | pool_mode | ignore_startup_parameters | grant in options | SET | fence.use | another client after a SET | pgxsql | pglock |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	for n, p := range poolers {
		addr, stop, err := w.pooled(ctx, path, n)
		if err != nil {
			return wrong, fmt.Errorf("PgBouncer %s, %s: %w", p.where, p.mode, err)
		}
		// Before any SET, which in transaction mode persists: a pool refuses a connection that presents a grant.
		pool, stale := stateOf(inPool(ctx, addr, w.current)), stateOf(inPool(ctx, addr, w.stale))
		if pool != p.use || stale != "ZF001" {
			wrong++
			pool += " (wanted " + p.use + "), under a stale grant " + stale
		}
		locks := "not tried" // in session mode each connection of a process takes a session, and there is one
		if p.mode == "transaction" {
			if locks = stateOf(inLocks(ctx, addr)); locks != "ok" {
				wrong++
			}
		}
		row := []string{p.where, p.mode, p.ignored}
		for way, want := range []string{p.options, p.set, p.use, p.afterwards} {
			got := w.through(ctx, addr, way, w.current)
			if got != want {
				wrong++
				got += " (wanted " + want + ")"
			} else if stale := w.through(ctx, addr, way, w.stale); want == "ok" && stale != "ZF001" {
				wrong++
				got += ", under a stale grant " + stale
			}
			row = append(row, got)
		}
		row = append(row, pool, locks)
		stop()
		fmt.Println("| " + strings.Join(row, " | ") + " |")
	}
	return wrong, nil
}

// pooled starts PgBouncer in front of the relay, or behind a separate one, and returns the address for clients.
func (w *world) pooled(ctx context.Context, path string, n int) (addr string, stop func(), err error) {
	p := poolers[n]
	to := w.relay
	if p.where == "behind" {
		to = w.direct
	}
	if addr, err = redisserver.FreeAddr(); err != nil {
		return "", nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	users, ini := filepath.Join(w.dir, fmt.Sprint("users", n)), filepath.Join(w.dir, fmt.Sprint("pgbouncer", n, ".ini"))
	for name, text := range map[string]string{users: `"driver" "driver"` + "\n", ini: strings.Join([]string{
		"[databases]", "postgres = host=" + to.host + " port=" + to.port, "[pgbouncer]", "listen_addr = 127.0.0.1", "listen_port = " + port,
		"unix_socket_dir =", "auth_type = trust", "auth_file = " + users, "pool_mode = " + p.mode, "default_pool_size = 1", "so_reuseport = 0",
		"ignore_startup_parameters = " + p.ignored, "",
	}, "\n")} {
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), w.give(name)); err != nil {
			return "", nil, err
		}
	}
	bouncer, err := child.Start(child.Spec{Path: path, Args: []string{"-q", ini}, Dir: w.dir, Credential: w.owner, StopSignal: syscall.SIGINT})
	if err != nil {
		return "", nil, err
	}
	stop = func() { bouncer.Stop(3 * time.Second) }
	if err := listens(ctx, addr); err != nil {
		stop()
		return "", nil, err
	}
	if p.where == "in front" {
		return addr, stop, nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = w.serve(ctx, pgwire.Config{Addr: addr, Logger: slog.New(slog.DiscardHandler)}, ln)
	}
	if err != nil {
		stop()
		return "", nil, err
	}
	return ln.Addr().String(), stop, nil
}

// listens waits until the address accepts connections.
func listens(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// The ways to present a grant to a pooler, and another client's write after one of them.
const (
	byOptions = iota
	bySet
	byUse
	afterSet
)

const insert = "INSERT INTO ledger VALUES ('pooled')"

// through writes with a grant, and returns the result.
func (w *world) through(ctx context.Context, addr string, way int, g fence.Grant) string {
	cfg, err := pgx.ParseConfig("postgres://driver:driver@" + addr + "/postgres?sslmode=disable")
	if err != nil {
		return err.Error()
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	if way == byOptions {
		cfg.RuntimeParams["options"] = "-c fence.resource=" + fence.EscapeResource(g.Resource) + " -c fence.token=" + g.Presented()
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return stateOf(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	switch way {
	case bySet, afterSet:
		_, err = conn.Exec(ctx, "SELECT set_config('fence.resource', $1, false), set_config('fence.token', $2, false)", fence.EscapeResource(g.Resource), g.Presented())
		if err == nil && way == afterSet {
			_ = conn.Close(ctx)
			cfg.RuntimeParams = map[string]string{}
			if conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
				return stateOf(err)
			}
		}
	case byUse:
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT fence.use($1::text, $2::text)", g.Resource, g.Presented()); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, insert)
			return err
		})
		return stateOf(err)
	}
	if err == nil {
		_, err = conn.Exec(ctx, insert)
	}
	return stateOf(err)
}

// inPool writes by a pool of package pgxsql, alone and in a transaction.
func inPool(ctx context.Context, addr string, g fence.Grant) error {
	db, err := pgxsql.Open("postgres://driver:driver@" + addr + "/postgres?sslmode=disable&default_query_exec_mode=exec")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	ctx = sqlfence.WithGrant(ctx, g)
	if _, err := db.ExecContext(ctx, insert); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, insert); err != nil {
		return err
	}
	return tx.Commit()
}

// inLocks takes, renews and releases leases in two processes with pgx's defaults, one of which waits for the other.
func inLocks(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var sources [2]*pglock.Source
	for i := range sources {
		config, err := pgxpool.ParseConfig("postgres://driver:driver@" + addr + "/postgres?sslmode=disable")
		if err != nil {
			return err
		}
		pgfence.Configure(config)
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return err
		}
		defer pool.Close()
		if sources[i], err = pglock.New(pglock.Config{Pool: pool}); err != nil {
			return err
		}
		defer func() { _ = sources[i].Close() }()
	}
	request := leasing.Request{Resource: "leases", TTL: time.Minute}
	for i := range 20 {
		s, other := sources[i%2], sources[(i+1)%2]
		lease, err := leasing.One(s.Acquire(ctx, leasing.AtOnce, request))
		if err == nil {
			_, err = other.Extend(ctx, lease.Ref(), request.TTL)
		}
		if err == nil {
			err = other.Release(ctx, lease.Ref())
		}
		if err != nil {
			return fmt.Errorf("lease %d of 20: %w", i+1, err)
		}
	}
	held, err := leasing.One(sources[0].Acquire(ctx, leasing.AtOnce, request))
	if err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() {
		lease, err := leasing.One(sources[1].Acquire(ctx, leasing.UntilDone, request))
		if err == nil {
			err = sources[1].Release(ctx, lease.Ref())
		}
		waited <- err
	}()
	for {
		ins, err := leasing.One(sources[0].Inspect(ctx, request.Resource))
		if err != nil {
			return err
		}
		if ins.Waiters == 1 {
			return errors.Join(sources[0].Release(ctx, held.Ref()), <-waited)
		}
		select {
		case err := <-waited:
			return fmt.Errorf("it did not wait: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func stateOf(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}

func noPooler(err error) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist)
}

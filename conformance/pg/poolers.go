package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/lock/pglock"
)

// poolers are the ways to use PgBouncer with the relay, and the expected results of a write under the current grant
// that is presented by options, by SET, or by fence.use in its transaction; and of another client's write without a
// grant, after a SET. A stale grant is refused where the current one passes.
var poolers = []struct {
	where, mode, ignored string // ignored: of startup parameters
	want                 [4]string
}{
	{"in front", "session", "extra_float_digits", [4]string{unsupported, "ok", "ok", "ZF002"}},
	{"in front", "session", "options", [4]string{"ZF002", "ok", "ok", "ZF002"}},
	{"in front", "transaction", "options", [4]string{"ZF002", "ok", "ok", "ok"}},
	{"behind", "session", "extra_float_digits", [4]string{unsupported, "ok", "ok", "ZF002"}},
	{"behind", "session", "options", [4]string{"ZF002", "ok", "ok", "ZF002"}},
	{"behind", "transaction", "options", [4]string{"ZF002", "ok", "ok", "ok"}},
}

// unsupported is PgBouncer's answer to an unknown startup parameter.
const unsupported = "08P01"

// The ways to present a grant to a pooler, and another client's write after one of them.
const (
	byOptions = iota
	bySet
	byUse
	afterSet
)

// comparePoolers prints a row for each way to use PgBouncer. With every server, a session without options keeps the
// same state, so one client suffices.
func (w *world) comparePoolers(ctx context.Context) (wrong int, err error) {
	fmt.Println("\n| PgBouncer | pool_mode | ignore_startup_parameters | grant in options | SET | fence.use | another client after a SET | pgxsql | pglock |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	for _, p := range poolers {
		to := w.relay
		if p.where == "behind" {
			to = w.direct
		}
		addr, err := w.pg.PgBouncer(ctx, stack.PgBouncerConfig{
			To: to.host + ":" + to.port, Users: map[string]string{"driver": "driver"},
			Settings: map[string]string{"pool_mode": p.mode, "default_pool_size": "1", "ignore_startup_parameters": p.ignored},
		})
		if err != nil {
			return wrong, fmt.Errorf("PgBouncer %s, %s: %w", p.where, p.mode, err)
		}
		if p.where == "behind" {
			if addr, err = w.serve(ctx, pgwire.Config{Addr: addr, Logger: slog.New(slog.DiscardHandler)}, "tcp", "127.0.0.1:0"); err != nil {
				return wrong, err
			}
		}
		url := "postgres://driver:driver@" + addr + "/postgres?sslmode=disable"
		row := []string{p.where, p.mode, p.ignored}
		judge := func(want string, write func(fence.Grant) error) string {
			got := stateOf(write(w.current))
			if got != want {
				wrong++
				return got + " (wanted " + want + ")"
			}
			if stale := stateOf(write(w.stale)); want == "ok" && stale != wanted["stale"] {
				wrong++
				got += ", under a stale grant " + stale
			}
			return got
		}
		// Before any SET, which in transaction mode persists: a pool refuses a connection that presents a grant.
		pool := judge("ok", func(g fence.Grant) error { return inPool(ctx, url, g) })
		locks := "not tried" // in session mode each connection of a process takes a session, and there is one
		if p.mode == "transaction" {
			if locks = stateOf(inLocks(ctx, url)); locks != "ok" {
				wrong++
			}
		}
		for way, want := range p.want {
			row = append(row, judge(want, func(g fence.Grant) error { return through(ctx, url, way, g) }))
		}
		printRow(append(row, pool, locks)...)
	}
	return wrong, nil
}

const insert = "INSERT INTO ledger VALUES ('pooled')"

// through writes with a grant.
func through(ctx context.Context, url string, way int, g fence.Grant) error {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	do := func(options string, statements func(*pgx.Conn) error) error {
		if options != "" {
			cfg.RuntimeParams["options"] = options
		}
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		return statements(conn)
	}
	set := func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT set_config('fence.resource', $1, false), set_config('fence.token', $2, false)", fence.EscapeResource(g.Resource), g.Presented())
		return err
	}
	write := func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, insert)
		return err
	}
	switch way {
	case byOptions:
		return do("-c fence.resource="+fence.EscapeResource(g.Resource)+" -c fence.token="+g.Presented(), write)
	case bySet:
		return do("", func(conn *pgx.Conn) error { return errors.Join(set(conn), write(conn)) })
	case byUse:
		return do("", func(conn *pgx.Conn) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "SELECT fence.use($1::text, $2::text)", g.Resource, g.Presented()); err != nil {
					return err
				}
				return write(tx.Conn())
			})
		})
	default: // afterSet
		return errors.Join(do("", set), do("", write))
	}
}

// inPool writes by a pool of package pgxsql, alone and in a transaction.
func inPool(ctx context.Context, url string, g fence.Grant) error {
	db, err := pgxsql.Open(url + "&default_query_exec_mode=exec")
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
func inLocks(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var sources [2]*pglock.Source
	for i := range sources {
		config, err := pgxpool.ParseConfig(url)
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
	err = stack.Until(ctx, "the other process waits", func(ctx context.Context) error {
		ins, err := leasing.One(sources[0].Inspect(ctx, request.Resource))
		if err == nil && ins.Waiters != 1 {
			err = fmt.Errorf("%d waiters", ins.Waiters)
		}
		return err
	})
	return errors.Join(err, sources[0].Release(ctx, held.Ref()), <-waited)
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

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/stack"
)

// fenceSubject measures the fence's cost in PostgreSQL, compared with no fence and with hand-written patterns, with
// durable commits. Commits are as the disk makes them ("fast"), or have a commit_delay ("slow"): the leader of a group
// commit sleeps before its fsync while it holds the lock, as with a slower disk. Goals are held at 16 clients.
//
// With -base it compares the server's processor time with that of the commit's SQL instead.
func fenceSubject() subject {
	s := subject{name: "fence", workers: []int{1, 16, 64}, slice: 400 * time.Millisecond, rounds: 7, base: true, contenders: []string{
		"unfenced", "unfenced-tx", "constant", "under", "per-row", "in-tx", "upsert", "arm-single", "arm", "told-after", "told-within",
	}}
	for _, peer := range peers {
		s.contenders = append(s.contenders, peer.name)
	}
	for _, p := range []struct {
		name    string
		measure func(context.Context, *bench, *stack.Stack, *fenceWorld, fenceCell)
	}{{"insert", fenceInsert}, {"tx", fenceTx}, {"copy", fenceCopy}, {"arm", fenceArm}, {"notify", fenceNotify}} {
		s.parts = append(s.parts, part{name: p.name, run: func(ctx context.Context, b *bench, s *stack.Stack) {
			if b.base != "" {
				fenceAgainstBase(ctx, b, s, p.name)
				return
			}
			w := startFence(ctx, s, stack.PostgresConfig{}, slices.Max(b.Workers))
			for _, commit := range b.commits {
				w.setCommit(ctx, commit)
				for _, n := range b.Workers {
					if p.name != "copy" || commit == "fast" && n <= 16 { // a COPY commits once per 100,000 rows
						cell := run.Cell{Name: fmt.Sprintf("%s.c%d.%s", p.name, n, commit), Workers: n}
						withStack(b, func(s *stack.Stack) { p.measure(ctx, b, s, w, fenceCell{cell, p.name, commit}) })
					}
				}
			}
		}})
	}
	return s
}

// fenceCell is one combination of part, commits and clients.
type fenceCell struct {
	run.Cell

	part, commit string
}

// goal is that of one contender over another.
func (c fenceCell) goal(b *bench, results run.Results, ours, peer string, want float64, suffix string) {
	if c.Workers == 16 {
		b.AtLeast("fence."+c.Name+"."+ours+suffix, results, ours, peer, want)
	}
}

// goals are those over no fence.
func (c fenceCell) goals(b *bench, results run.Results, want, perRow float64, peerOfInTx string) {
	c.goal(b, results, "constant", "unfenced", want, "")
	c.goal(b, results, "under", "unfenced", want, "")
	c.goal(b, results, "per-row", "unfenced", perRow, "")
	c.goal(b, results, "in-tx", peerOfInTx, want, "")
}

// goalsByHand are those over the hand-written patterns: three times as fast if several connections share one grant, so
// that the pattern locks its row, and as fast without contention.
func (c fenceCell) goalsByHand(b *bench, results run.Results) {
	for _, g := range []struct {
		ours, peer string
		want       float64
	}{
		{"constant", "for-update", 3},
		{"constant", "hand-written", 3},
		{"constant", "for-share", 1},
		{"under", "hand-own", 1},
		{"under", "share-own", 1},
		{"per-row", "hand-own", 1},
	} {
		c.goal(b, results, g.ours, g.peer, g.want, ".over."+g.peer)
	}
}

// shared is the resource whose grant all clients present, for the tables with a constant resource. Each client also has
// its own grant, below own.
const (
	shared = "bench/shared"
	own    = "clients/"
)

// fenceWorld is a server with the fence and the grants.
type fenceWorld struct {
	database

	grant  fence.Grant   // of shared
	grants []fence.Grant // one per client
}

// The tables of the hand-written patterns have one row for each resource.
var sqlPeers = []string{
	`CREATE TABLE hand (resource text PRIMARY KEY, last_fencing_token bigint NOT NULL) WITH (fillfactor = 50)`,
	`CREATE TABLE plain (resource text PRIMARY KEY, token bigint NOT NULL, seal bytea, holder text NOT NULL, armed_at timestamptz NOT NULL)
	  WITH (fillfactor = 50)`,
	`GRANT ALL ON hand TO ` + stack.Writer, `GRANT ALL ON plain TO ` + stack.Gateway,
}

func startFence(ctx context.Context, s *stack.Stack, cfg stack.PostgresConfig, clients int) *fenceWorld {
	cfg.Durable, cfg.Database.Then = true, sqlPeers
	cfg.Settings = map[string]string{"max_connections": strconv.Itoa(4*clients + 32)}
	w := &fenceWorld{database: startDatabase(ctx, s, cfg)}
	w.grant = w.arm(ctx, shared)
	for i := range clients {
		w.grants = append(w.grants, w.arm(ctx, own+strconv.Itoa(i)))
	}
	return w
}

func (w *fenceWorld) arm(ctx context.Context, resource string) fence.Grant {
	w.exec(ctx, `INSERT INTO hand VALUES ($1, 1)`, resource)
	return run.Must(w.Arm(ctx, resource, 1))
}

// setCommit sets how long the commits of new sessions take.
func (w *fenceWorld) setCommit(ctx context.Context, commit string) {
	delay, known := map[string]int{"slow": 1500, "fast": 0}[commit] // µs
	if !known {
		run.Check(fmt.Errorf("there are no %q commits", commit))
	}
	for _, login := range []string{stack.Writer, stack.Gateway} {
		w.exec(ctx, fmt.Sprintf("ALTER ROLE %s SET commit_delay = %d; ALTER ROLE %[1]s SET commit_siblings = 0", login, delay))
	}
}

// protections are the arguments of fence.protect for the contenders with a trigger.
var protections = map[string]string{
	"constant": "resource => '" + shared + "'",
	"under":    "under => '" + own + "'",
	"per-row":  "per_row => $$'" + own + "' || client$$",
}

// table creates a contender's table of a part, and returns its name.
func (w *fenceWorld) table(ctx context.Context, part, contender string) string {
	name := part + "_" + strings.ReplaceAll(contender, "-", "_")
	w.exec(ctx, fmt.Sprintf(`DROP TABLE IF EXISTS %[1]s; CREATE TABLE %[1]s (id bigserial PRIMARY KEY, client int NOT NULL, note text);
		GRANT ALL ON %[1]s TO %[2]s; GRANT ALL ON SEQUENCE %[1]s_id_seq TO %[2]s`, name, stack.Writer))
	if protection := protections[contender]; protection != "" {
		w.exec(ctx, fmt.Sprintf("SELECT fence.protect('%s', %s)", name, protection))
	}
	return name
}

// fenceClient is one client, with sessions of which it uses one at a time.
type fenceClient struct {
	id     int
	plain  *pgx.Conn // presents no grant
	shared *pgx.Conn // presents the shared grant in its connection's settings
	own    *pgx.Conn // presents its own grant in its connection's settings
	grant  fence.Grant
}

// clients connects n clients, which the stack disconnects.
func (w *fenceWorld) clients(ctx context.Context, s *stack.Stack, n int) (all []*fenceClient) {
	session := func(g *fence.Grant) *pgx.Conn {
		config := run.Must(pgx.ParseConfig(w.As(stack.Writer)))
		if g != nil {
			config.RuntimeParams["fence.resource"], config.RuntimeParams["fence.token"] = fence.EscapeResource(g.Resource), g.Presented()
		}
		return connect(ctx, s, config)
	}
	for i, g := range w.grants[:n] {
		all = append(all, &fenceClient{id: i, grant: g, plain: session(nil), shared: session(&w.grant), own: session(&g)})
	}
	return all
}

type (
	// fenceOp is what a contender does to its table.
	fenceOp struct {
		name, peer string
		do         func(ctx context.Context, c *fenceClient, table string) error
	}
	// onConn does something to a table on one of a client's sessions.
	onConn func(ctx context.Context, c *fenceClient, conn *pgx.Conn, table string) error
)

// contenders creates the operations' tables.
func (w *fenceWorld) contenders(ctx context.Context, part string, clients []*fenceClient, ops []fenceOp) (all []run.Contender) {
	for _, op := range ops {
		table := w.table(ctx, part, op.name)
		one := run.Contender{Name: op.name, Op: func(ctx context.Context, worker int, _ int64) error { return op.do(ctx, clients[worker], table) }}
		if op.peer != "" {
			one.Peers = []string{op.peer}
		}
		all = append(all, one)
	}
	return all
}

// measure measures operations on tables: all at their own speed, or this many in a slice, each time on new tables.
func (w *fenceWorld) measure(ctx context.Context, b *bench, s *stack.Stack, c fenceCell, ops []fenceOp, fixed int) run.Results {
	all := w.contenders(ctx, c.part, w.clients(ctx, s, c.Workers), ops)
	if c.Ops = fixed; fixed > 0 {
		c.Slice = time.Minute
		for i, one := range all {
			all[i].Before = func(ctx context.Context, _ int) {
				w.table(ctx, c.part, one.Name)
				w.exec(ctx, "CHECKPOINT") // so that one contender's dirty pages do not cost the next one
			}
		}
	}
	return b.Measure(ctx, c.Cell, all...)
}

// byHand is the statement before a write for a contender without a trigger. The hand-written ones are the pattern at
// its best: one row for each resource, found by its key, in the same round trip as the write.
type byHand struct {
	name string
	sql  string // $1: the token, $2: the resource
	own  bool   // a resource per client, instead of a shared one
}

const (
	sqlByHand    = `UPDATE hand SET last_fencing_token = $1 WHERE resource = $2 AND last_fencing_token <= $1`
	sqlForUpdate = `SELECT FROM hand WHERE resource = $2 AND last_fencing_token <= $1 FOR UPDATE`
	sqlForShare  = `SELECT FROM hand WHERE resource = $2 AND last_fencing_token <= $1 FOR SHARE`
	sqlAdvisory  = `SELECT pg_advisory_xact_lock($1) WHERE $2::text <> ''`
)

var peers = []byHand{
	{name: "hand-written", sql: sqlByHand},
	{name: "for-update", sql: sqlForUpdate},
	{name: "for-share", sql: sqlForShare},
	{name: "advisory", sql: sqlAdvisory},
	{name: "hand-own", sql: sqlByHand, own: true},
	{name: "share-own", sql: sqlForShare, own: true},
}

func (p byHand) resource(c *fenceClient) string {
	if p.own {
		return c.grant.Resource
	}
	return shared
}

var errNoRow = errors.New("the write was refused")

func insertInto(table string) string {
	return `INSERT INTO ` + table + ` (client, note) VALUES ($1, 'what a worker has to say')`
}

// unfenced is the same without a fence.
func unfenced(do onConn) fenceOp {
	return fenceOp{name: "unfenced", do: func(ctx context.Context, c *fenceClient, table string) error { return do(ctx, c, c.plain, table) }}
}

// fenced are ours: on tables with a trigger, and by [pgfence.InTx] on one without.
func (w *fenceWorld) fenced(do, inTx onConn) []fenceOp {
	byOwn := func(ctx context.Context, c *fenceClient, table string) error { return do(ctx, c, c.own, table) }
	return []fenceOp{
		{name: "constant", do: func(ctx context.Context, c *fenceClient, table string) error { return do(ctx, c, c.shared, table) }},
		{name: "under", do: byOwn},
		{name: "per-row", do: byOwn},
		{name: "in-tx", do: func(ctx context.Context, c *fenceClient, table string) error {
			return pgfence.InTx(ctx, c.plain, w.grant, func(pgx.Tx) error { return inTx(ctx, c, c.plain, table) })
		}},
	}
}

// inserts are one row, one round trip, one commit.
func (w *fenceWorld) inserts() []fenceOp {
	insert := func(ctx context.Context, c *fenceClient, conn *pgx.Conn, table string) error {
		_, err := conn.Exec(ctx, insertInto(table), c.id)
		return err
	}
	ops := []fenceOp{unfenced(insert)}
	for _, peer := range peers {
		guard := peer.sql
		if guard == sqlByHand {
			guard += " RETURNING resource"
		}
		ops = append(ops, fenceOp{name: peer.name, do: func(ctx context.Context, c *fenceClient, table string) error {
			sql := `WITH current AS MATERIALIZED (` + guard + `) INSERT INTO ` + table + ` (client, note) SELECT $3, 'what a worker has to say' FROM current`
			tag, err := c.plain.Exec(ctx, sql, 1, peer.resource(c), c.id)
			if err == nil && tag.RowsAffected() != 1 {
				err = errNoRow
			}
			return err
		}})
	}
	ops = append(append(ops, w.fenced(insert, insert)...), fenceOp{name: "unfenced-tx", do: func(ctx context.Context, c *fenceClient, table string) error {
		return pgx.BeginFunc(ctx, c.plain, func(pgx.Tx) error { return insert(ctx, c, c.plain, table) })
	}})
	ops[len(ops)-2].peer = "unfenced-tx" // of in-tx
	return ops
}

func fenceInsert(ctx context.Context, b *bench, s *stack.Stack, w *fenceWorld, c fenceCell) {
	results := w.measure(ctx, b, s, c, w.inserts(), 0)
	c.goals(b, results, 0.85, 0.75, "unfenced-tx")
	c.goalsByHand(b, results)
}

// transactions are BEGIN, ten statements with a round trip each, COMMIT. Five rows are inserted, and updated.
func (w *fenceWorld) transactions() []fenceOp {
	ten := func(ctx context.Context, c *fenceClient, conn *pgx.Conn, table string) error {
		for range 5 {
			var id int64
			if err := conn.QueryRow(ctx, insertInto(table)+` RETURNING id`, c.id).Scan(&id); err != nil {
				return err
			}
			if _, err := conn.Exec(ctx, `UPDATE `+table+` SET note = 'and what it says now' WHERE id = $1`, id); err != nil {
				return err
			}
		}
		return nil
	}
	begun := func(ctx context.Context, c *fenceClient, conn *pgx.Conn, table string) error {
		return pgx.BeginFunc(ctx, conn, func(pgx.Tx) error { return ten(ctx, c, conn, table) })
	}
	ops := []fenceOp{unfenced(begun)}
	for _, peer := range peers {
		ops = append(ops, fenceOp{name: peer.name, do: func(ctx context.Context, c *fenceClient, table string) error {
			batch := &pgx.Batch{} // as InTx does: sent together with BEGIN
			batch.Queue(`BEGIN`)
			batch.Queue(peer.sql, 1, peer.resource(c))
			if err := c.plain.SendBatch(ctx, batch).Close(); err != nil {
				return err
			}
			if err := ten(ctx, c, c.plain, table); err != nil {
				return err
			}
			_, err := c.plain.Exec(ctx, `COMMIT`)
			return err
		}})
	}
	return append(ops, w.fenced(begun, ten)...)
}

func fenceTx(ctx context.Context, b *bench, s *stack.Stack, w *fenceWorld, c fenceCell) {
	results := w.measure(ctx, b, s, c, w.transactions(), 0)
	c.goals(b, results, 0.85, 0.75, "unfenced")
	c.goalsByHand(b, results)
}

// fenceCopy measures COPY of 100,000 rows into an empty table.
func fenceCopy(ctx context.Context, b *bench, s *stack.Stack, w *fenceWorld, c fenceCell) {
	copied := func(ctx context.Context, c *fenceClient, conn *pgx.Conn, table string) error {
		rows := bytes.Repeat(fmt.Appendf(nil, "%d\twhat a worker has to say\n", c.id), 100_000)
		_, err := conn.PgConn().CopyFrom(ctx, bytes.NewReader(rows), `COPY `+table+` (client, note) FROM STDIN`)
		return err
	}
	results := w.measure(ctx, b, s, c, append([]fenceOp{unfenced(copied)}, w.fenced(copied, copied)...), max(1, 4/c.Workers))
	c.goals(b, results, 0.97, 0.90, "unfenced")
}

// fenceAgainstBase measures what an operation costs the server's session, with the SQL of the commit, of the tree, and
// of the commit again: three servers take turns, with one client each.
func fenceAgainstBase(ctx context.Context, b *bench, s *stack.Stack, part string) {
	ops := map[string]int{"insert": 1000, "tx": 200, "arm": 1000}[part]
	if ops == 0 {
		if len(b.Parts) > 0 {
			run.Check(fmt.Errorf("%s is not compared with a commit", part))
		}
		b.Printf("not compared with a commit\n")
		return
	}
	sides := map[string][]run.Contender{} // by the operation
	for i, program := range versions(ctx, s, b.base) {
		w := startFence(ctx, s, stack.PostgresConfig{Name: "postgresql-" + sideNames[i], Database: stack.Database{Migrate: migrateBy(program)}}, 1)
		c := w.clients(ctx, s, 1)
		conns := []*pgx.Conn{c[0].plain, c[0].shared, c[0].own}
		var contenders []run.Contender
		switch part {
		case "insert":
			contenders = w.contenders(ctx, part, c, w.inserts())
		case "tx":
			contenders = w.contenders(ctx, part, c, w.transactions())
		default:
			conn := connect(ctx, s, run.Must(pgx.ParseConfig(w.As(stack.Gateway))))
			conns = []*pgx.Conn{conn}
			contenders = []run.Contender{{Name: "arm", Op: func(ctx context.Context, _ int, n int64) error {
				return armOnce(ctx, conn, fence.Arming{Resource: "bench/arm", Token: fence.Token(n), SealHash: fence.NewSeal().Hash(), Holder: "bench"})
			}}}
		}
		sessions := cost("its sessions", func() (sum time.Duration) {
			for _, conn := range conns {
				sum += spentBy(int(conn.PgConn().PID()))
			}
			return sum
		})
		for _, one := range contenders {
			op := one.Name
			one.Name, one.Peers, one.Meters = sideNames[i], sideNames[:1], sessions
			sides[op] = append(sides[op], one)
		}
	}
	for _, op := range []string{"unfenced", "constant", "under", "per-row", "in-tx", "arm"} { // the others do not depend on our SQL
		if sides[op] != nil && b.Chosen(op) {
			results := b.Measure(ctx, run.Cell{Name: part + "." + op, Workers: 1, Ops: ops, Slice: time.Minute, All: true}, sides[op]...)
			addVersionGoal(b, "fence.base."+part+"."+op, results, "µs of its sessions", false)
		}
	}
}

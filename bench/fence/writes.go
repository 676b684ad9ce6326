package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/pgfence"
)

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

func (b byHand) resource(c *client) string {
	if b.own {
		return c.grant.Resource
	}
	return shared
}

// protections are the arguments of fence.protect for the contenders with a trigger.
func protections() map[string]string {
	return map[string]string{
		"constant": "resource => '" + shared + "'",
		"under":    "under => '" + own + "'",
		"per-row":  "per_row => $$'" + own + "' || client$$",
	}
}

var errNoRow = errors.New("the write was refused")

// tables creates a table for each contender of a part and returns their names. If fence.protect takes no expression
// yet, there is no table per-row.
func (w *world) tables(ctx context.Context, part string) (map[string]string, error) {
	tables := make(map[string]string)
	guards := protections()
	names := []string{"unfenced", "constant", "under", "per-row", "unfenced-tx", "in-tx"}
	for _, peer := range peers {
		names = append(names, peer.name)
	}
	for _, name := range names {
		table := part + "_" + strings.ReplaceAll(name, "-", "_")
		if err := w.table(ctx, table, guards[name]); err != nil {
			if name == "per-row" {
				fmt.Println("per-row is not measured:", err)
				continue
			}
			return nil, err
		}
		tables[name] = table
	}
	return tables, nil
}

func insertInto(table string) string {
	return `INSERT INTO ` + table + ` (client, note) VALUES ($1, 'what a worker has to say')`
}

// insertPart measures one row, one round trip, one commit.
func (p plan) insertPart(ctx context.Context, w *world, in cell) ([]goal, error) {
	contenders, err := w.insertContenders(ctx, in.part)
	if err != nil {
		return nil, err
	}
	clients, end, err := w.clients(ctx, in.clients)
	if err != nil {
		return nil, err
	}
	defer end()
	results, err := p.measure(ctx, clients, in, contenders, 0, nil)
	if err != nil {
		return nil, err
	}
	return append(p.relative(results, in, 0.85, 0.75), overByHand(results, in)...), nil
}

func (w *world) insertContenders(ctx context.Context, part string) ([]contender, error) {
	tables, err := w.tables(ctx, part)
	if err != nil {
		return nil, err
	}
	contenders := []contender{{name: "unfenced", op: func(ctx context.Context, c *client) error { return insert(ctx, c, c.plain, tables["unfenced"]) }}}
	for _, peer := range peers {
		guard := peer.sql
		if guard == sqlByHand {
			guard += " RETURNING resource"
		}
		sql := `WITH current AS MATERIALIZED (` + guard + `) INSERT INTO ` + tables[peer.name] +
			` (client, note) SELECT $3, 'what a worker has to say' FROM current`
		contenders = append(contenders, contender{name: peer.name, op: func(ctx context.Context, c *client) error {
			tag, err := c.plain.Exec(ctx, sql, 1, peer.resource(c), c.id)
			if err == nil && tag.RowsAffected() != 1 {
				err = errNoRow
			}
			return err
		}})
	}
	contenders = append(contenders,
		contender{name: "constant", op: func(ctx context.Context, c *client) error { return insert(ctx, c, c.shared, tables["constant"]) }},
		contender{name: "under", op: func(ctx context.Context, c *client) error { return insert(ctx, c, c.own, tables["under"]) }},
	)
	if tables["per-row"] != "" {
		contenders = append(contenders, contender{name: "per-row", op: func(ctx context.Context, c *client) error { return insert(ctx, c, c.own, tables["per-row"]) }})
	}
	return append(contenders,
		contender{name: "unfenced-tx", op: func(ctx context.Context, c *client) error {
			return pgx.BeginFunc(ctx, c.plain, func(pgx.Tx) error { return insert(ctx, c, c.plain, tables["unfenced-tx"]) })
		}},
		contender{name: "in-tx", peer: "unfenced-tx", op: func(ctx context.Context, c *client) error {
			return pgfence.InTx(ctx, c.plain, w.grant, func(pgx.Tx) error { return insert(ctx, c, c.plain, tables["in-tx"]) })
		}},
	), nil
}

func insert(ctx context.Context, c *client, conn *pgx.Conn, table string) error {
	_, err := conn.Exec(ctx, insertInto(table), c.id)
	return err
}

// relative returns the goals over unfenced.
func (plan) relative(results map[string]*result, in cell, want, perRow float64) (goals []goal) {
	goals = append(goals, compare(results, in, "constant", "unfenced", want)...)
	goals = append(goals, compare(results, in, "under", "unfenced", want)...)
	goals = append(goals, compare(results, in, "per-row", "unfenced", perRow)...)
	if results["unfenced-tx"] != nil {
		return append(goals, compare(results, in, "in-tx", "unfenced-tx", want)...)
	}
	return append(goals, compare(results, in, "in-tx", "unfenced", want)...)
}

// overByHand returns the goals over the hand-written patterns: three times as fast if several connections share one
// grant, so that the pattern locks its row, and as fast without contention.
func overByHand(results map[string]*result, in cell) (goals []goal) {
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
		for _, over := range compare(results, in, g.ours, g.peer, g.want) {
			over.name += ".over." + g.peer
			goals = append(goals, over)
		}
	}
	return goals
}

// txPart measures BEGIN, ten statements with a round trip each, COMMIT. Five rows are inserted, and updated.
func (p plan) txPart(ctx context.Context, w *world, in cell) ([]goal, error) {
	contenders, err := w.txContenders(ctx, in.part)
	if err != nil {
		return nil, err
	}
	clients, end, err := w.clients(ctx, in.clients)
	if err != nil {
		return nil, err
	}
	defer end()
	results, err := p.measure(ctx, clients, in, contenders, 0, nil)
	if err != nil {
		return nil, err
	}
	return append(p.relative(results, in, 0.85, 0.75), overByHand(results, in)...), nil
}

func (w *world) txContenders(ctx context.Context, part string) ([]contender, error) {
	tables, err := w.tables(ctx, part)
	if err != nil {
		return nil, err
	}
	ten := func(ctx context.Context, c *client, conn *pgx.Conn, table string) error {
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
	plainly := func(name string, pick func(*client) *pgx.Conn) contender {
		return contender{name: name, op: func(ctx context.Context, c *client) error {
			return pgx.BeginFunc(ctx, pick(c), func(pgx.Tx) error { return ten(ctx, c, pick(c), tables[name]) })
		}}
	}
	contenders := []contender{plainly("unfenced", func(c *client) *pgx.Conn { return c.plain })}
	for _, peer := range peers {
		contenders = append(contenders, contender{name: peer.name, op: func(ctx context.Context, c *client) error {
			batch := &pgx.Batch{} // as InTx does: sent together with BEGIN
			batch.Queue(`BEGIN`)
			batch.Queue(peer.sql, 1, peer.resource(c))
			if err := c.plain.SendBatch(ctx, batch).Close(); err != nil {
				return err
			}
			if err := ten(ctx, c, c.plain, tables[peer.name]); err != nil {
				return err
			}
			_, err := c.plain.Exec(ctx, `COMMIT`)
			return err
		}})
	}
	contenders = append(contenders,
		plainly("constant", func(c *client) *pgx.Conn { return c.shared }),
		plainly("under", func(c *client) *pgx.Conn { return c.own }))
	if tables["per-row"] != "" {
		contenders = append(contenders, plainly("per-row", func(c *client) *pgx.Conn { return c.own }))
	}
	return append(contenders, contender{name: "in-tx", op: func(ctx context.Context, c *client) error {
		return pgfence.InTx(ctx, c.plain, w.grant, func(pgx.Tx) error { return ten(ctx, c, c.plain, tables["in-tx"]) })
	}}), nil
}

// copyPart measures COPY of 100,000 rows into an empty table, with at most 16 clients.
func (p plan) copyPart(ctx context.Context, w *world, in cell) ([]goal, error) {
	if in.clients > 16 {
		return nil, nil
	}
	tables, err := w.tables(ctx, in.part)
	if err != nil {
		return nil, err
	}
	clients, end, err := w.clients(ctx, in.clients)
	if err != nil {
		return nil, err
	}
	defer end()
	data := make([][]byte, in.clients)
	for i := range data {
		data[i] = bytes.Repeat(fmt.Appendf(nil, "%d\twhat a worker has to say\n", i), 100_000)
	}
	copying := func(name string, pick func(*client) *pgx.Conn) contender {
		return contender{name: name, op: func(ctx context.Context, c *client) error {
			_, err := pick(c).PgConn().CopyFrom(ctx, bytes.NewReader(data[c.id]), `COPY `+tables[name]+` (client, note) FROM STDIN`)
			return err
		}}
	}
	contenders := []contender{copying("unfenced", func(c *client) *pgx.Conn { return c.plain })}
	for _, one := range []contender{
		copying("constant", func(c *client) *pgx.Conn { return c.shared }),
		copying("under", func(c *client) *pgx.Conn { return c.own }),
		copying("per-row", func(c *client) *pgx.Conn { return c.own }),
	} {
		if tables[one.name] != "" {
			contenders = append(contenders, one)
		}
	}
	inTx := copying("in-tx", func(c *client) *pgx.Conn { return c.plain })
	contenders = append(contenders, contender{name: inTx.name, op: func(ctx context.Context, c *client) error {
		return pgfence.InTx(ctx, c.plain, w.grant, func(pgx.Tx) error { return inTx.op(ctx, c) })
	}})
	each := max(1, 4/in.clients)
	results, err := p.measure(ctx, clients, in, contenders, each, func(next contender) error {
		if err := w.table(ctx, tables[next.name], protections()[next.name]); err != nil {
			return err
		}
		return w.exec(ctx, "CHECKPOINT") // so that one contender's dirty pages do not cost the next one
	})
	if err != nil {
		return nil, err
	}
	return p.relative(results, in, 0.97, 0.90), nil
}

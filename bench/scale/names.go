package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// usedOnce arms a step of names, and ends the previous step, leaving the rows as the fence's own functions do, in
// separate transactions. $1 is the first number of a step, $2 its length, $3 spreads the numbers over all names; with 1
// they stay in order.
var usedOnce = []string{
	`INSERT INTO fence.arms SELECT 'orders/' || lpad((n * $3::bigint % 1000000000)::text, 9, '0') FROM generate_series($1::bigint, $1 + $2 - 1) n`,
	`INSERT INTO fence.resources (resource, token, seal, holder, armed_at)
	 SELECT 'orders/' || lpad((n * $3::bigint % 1000000000)::text, 9, '0'), 1, sha256(n::text::bytea), 'bench', clock_timestamp()
	   FROM generate_series($1::bigint, $1 + $2 - 1) n`,
	`UPDATE fence.resources r SET ended_at = clock_timestamp()
	   FROM generate_series($1::bigint - $2, $1 - 1) n WHERE r.resource = 'orders/' || lpad((n * $3::bigint % 1000000000)::text, 9, '0')`,
}

// scatter is coprime to 10^9, so each number gets another name.
const scatter = 387420489

// namesPart measures what names that are used once leave behind: half of live is armed at a time, then the previous
// half is ended and retired by fence.retire, and then a plain VACUUM runs.
func (p plan) namesPart(ctx context.Context) error {
	fmt.Printf("%-10s %10s %10s %12s %12s %12s %12s\n", "names", "used once", "live", "MB", "of tables", "of indexes", "floors")
	if err := p.useOnce(ctx, "in order", 1); err != nil || p.inOrder {
		return err
	}
	return p.useOnce(ctx, "scattered", scatter)
}

func (p plan) useOnce(ctx context.Context, name string, spread int64) (err error) {
	db, err := startDatabase(ctx)
	defer func() { err = errors.Join(err, db.close()) }()
	if err != nil {
		return err
	}
	step := p.live / 2
	begun := time.Now()
	for first := 0; first < p.names; first += step {
		for _, sql := range usedOnce {
			if _, err := db.admin.Exec(ctx, sql, first, step, spread); err != nil {
				return err
			}
		}
		if err := db.retire(ctx); err != nil {
			return err
		}
		if _, err := db.admin.Exec(ctx, `VACUUM fence.arms, fence.resources, fence.floors`); err != nil {
			return err
		}
		if used := first + step; used >= p.names || used%max(step, p.names/20) < step {
			if err := db.printLeft(ctx, name, used); err != nil {
				return err
			}
		}
	}
	fmt.Printf("%-10s %10d in %v\n", name, p.names, time.Since(begun).Round(time.Second))
	return nil
}

// retire goes through all names once.
func (d *database) retire(ctx context.Context) error {
	for last := new(""); last != nil; {
		if err := d.admin.QueryRow(ctx, `SELECT last FROM fence.retire('0', $1, 1000)`, *last).Scan(&last); err != nil {
			return err
		}
	}
	return nil
}

const sqlLeft = `SELECT count(*), (sum(pg_total_relation_size(c.oid)) / 1e6)::float8, (sum(pg_table_size(c.oid)) / 1e6)::float8, (sum(pg_indexes_size(c.oid)) / 1e6)::float8,
       (pg_total_relation_size('fence.floors') / 1e6)::float8
  FROM pg_class c WHERE c.oid IN ('fence.arms'::regclass, 'fence.resources'::regclass, 'fence.floors'::regclass)`

func (d *database) printLeft(ctx context.Context, name string, used int) error {
	var tables, live int
	var all, heap, indexes, floors float64
	if err := d.admin.QueryRow(ctx, sqlLeft).Scan(&tables, &all, &heap, &indexes, &floors); err != nil {
		return err
	}
	if err := d.admin.QueryRow(ctx, `SELECT count(*) FROM fence.resources`).Scan(&live); err != nil {
		return err
	}
	fmt.Printf("%-10s %10d %10d %12.1f %12.1f %12.1f %12.1f\n", name, used, live, all, heap, indexes, floors)
	return nil
}

package objects

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// lookups finds the current versions of keys. Look-ups that arrive while a query runs share the next query: one
// statement, one round trip. A query's snapshot is taken after all of its look-ups began, so each sees every write that
// was acknowledged before it.
//
// A shared query is only an optimization: if it fails, its look-ups run one by one, so that none fails because of
// another.
type lookups struct {
	db    Database
	log   *slog.Logger
	turns turns[*lookup]
}

// lookup is one look-up.
type lookup struct {
	bucket, key string
	began       time.Time
	found       current
	done        bool // the shared query answered
}

// current is the current version of a key, if any.
type current struct {
	Stored
	retained

	bucket, key bool // whether the bucket exists, and the key in it
}

// retained is the retention that a look-up returned with a version.
type retained struct {
	left     time.Duration // from the answer on; 0: it has ended, or there is none
	identity string        // of the PostgreSQL that answered
}

const (
	// How long a version will stay current, in microseconds, and which PostgreSQL says so. 0 and "": it may change.
	retentionColumns = `CASE WHEN v.created_at + b.retention > clock_timestamp() THEN (extract(epoch FROM v.created_at + b.retention - clock_timestamp()) * 1000000)::bigint ELSE 0 END,
	CASE WHEN v.created_at + b.retention > clock_timestamp() THEN (SELECT i.identity FROM fence.identity() i) ELSE '' END`
	currentColumns = "v.id IS NOT NULL, " + retentionColumns + ", " + foundColumns

	// Both return one row if the bucket exists; its version is NULL if the key does not.
	sqlCurrent = "SELECT " + currentColumns + `
	FROM objects.buckets b
	LEFT JOIN objects.pointers p ON p.bucket = b.name AND p.key = $2
	LEFT JOIN objects.versions v ON v.id = p.version
	WHERE b.name = $1`
	// The arrays are hidden from the planner, which would otherwise make a plan per length.
	sqlCurrents = "SELECT w.n, " + currentColumns + `
	FROM unnest((SELECT $1::text[]), (SELECT $2::text[])) WITH ORDINALITY AS w(bucket, key, n)
	JOIN objects.buckets b ON b.name = w.bucket COLLATE "C"
	LEFT JOIN objects.pointers p ON p.bucket = b.name AND p.key = w.key COLLATE "C"
	LEFT JOIN objects.versions v ON v.id = p.version`

	lookupPatience = 20 * time.Millisecond // of look-ups that wait for another query
	maxAsked       = 128                   // per query
)

func newLookups(db Database, log *slog.Logger) *lookups {
	half := max(1, int(db.pool.Config().MaxConns)/2) // commits need connections, too
	return &lookups{db: db, log: log, turns: turns[*lookup]{atOnce: min(2, half), perGroup: maxAsked, patience: lookupPatience, most: half}}
}

// find returns the current version of a key. The error is one of [Database.Once].
func (s *lookups) find(ctx context.Context, bucket, key string) (current, error) {
	l := &lookup{bucket: bucket, key: key, began: time.Now()}
	s.turns.take(l, s.ask)
	if l.done {
		return l.found, nil
	}
	ctx, cancel := context.WithDeadline(ctx, l.began.Add(s.db.timeout))
	defer cancel()
	return s.one(ctx, bucket, key)
}

// one looks up one key.
func (s *lookups) one(ctx context.Context, bucket, key string) (c current, err error) {
	err = s.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return c.scan(q.QueryRow(ctx, sqlCurrent, bucket, key))
	})
	return c, noRows(err, nil)
}

// ask looks up a group, whose first member has waited longest.
func (s *lookups) ask(group []*lookup) {
	ctx, cancel := context.WithDeadline(context.Background(), group[0].began.Add(s.db.timeout))
	defer cancel()
	found := make([]current, len(group))
	var err error
	if len(group) == 1 {
		found[0], err = s.one(ctx, group[0].bucket, group[0].key)
	} else {
		err = s.many(ctx, group, found)
	}
	if err != nil {
		s.log.Warn("s3: a batched look-up failed; its objects are looked up one by one", "look_ups", len(group), "error", err)
		return
	}
	for i, l := range group {
		l.found, l.done = found[i], true
	}
}

func (s *lookups) many(ctx context.Context, group []*lookup, found []current) error {
	buckets, keys := make([]string, len(group)), make([]string, len(group))
	for i, l := range group {
		buckets[i], keys[i] = l.bucket, l.key
	}
	return s.db.Once(ctx, func(ctx context.Context, q Querier) error {
		rows, err := q.Query(ctx, sqlCurrents, buckets, keys)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var n int
			var c current
			if err := c.scan(rowTail{rows, []any{&n}}); err != nil {
				return err
			}
			found[n-1] = c
		}
		return rows.Err()
	})
}

// scan reads a row of currentColumns; a row means that the bucket exists.
func (c *current) scan(row pgx.Row) error {
	var left int64
	err := c.Stored.scan(rowTail{row, []any{&c.key, &left, &c.identity}})
	c.bucket, c.left = err == nil, time.Duration(left)*time.Microsecond
	return err
}

package objects

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// lookups find the current versions of keys. Those that come while PostgreSQL is
// asked are asked together in the next question: one statement, one round trip.
// A question's snapshot is taken after all of its look-ups began, so each sees every
// write that was acknowledged before it.
//
// A question is only the quick way: if it fails, for any reason, its look-ups
// are made one by one, so that none fails because of another.
type lookups struct {
	db    Database
	log   *slog.Logger
	turns turns[*lookup]
}

// lookup is one of them.
type lookup struct {
	bucket, key string
	began       time.Time
	found       current
	done        bool // the question was answered
}

// current is the current version of a key, as far as there is one.
type current struct {
	Stored
	retained

	bucket, key bool // whether there is such a bucket, and such a key in it
}

const (
	// How long a version will stay the current one, in microseconds, and who says so. 0 and "": it may change.
	retentionColumns = `CASE WHEN v.created_at + b.retention > clock_timestamp() THEN (extract(epoch FROM v.created_at + b.retention - clock_timestamp()) * 1000000)::bigint ELSE 0 END,
	CASE WHEN v.created_at + b.retention > clock_timestamp() THEN (SELECT i.identity FROM fence.identity() i) ELSE '' END`
	currentColumns = "v.id IS NOT NULL, " + retentionColumns + ", " + foundColumns

	// Both give one row where the bucket exists; its version is NULL where the key does not.
	sqlCurrent = "SELECT " + currentColumns + `
	FROM objects.buckets b
	LEFT JOIN objects.pointers p ON p.bucket = b.name AND p.key = $2
	LEFT JOIN objects.versions v ON v.id = p.version
	WHERE b.name = $1`
	// The arrays are hidden from the planner, which would make a plan for each
	// length of them.
	sqlCurrents = "SELECT w.n, " + currentColumns + `
	FROM unnest((SELECT $1::text[]), (SELECT $2::text[])) WITH ORDINALITY AS w(bucket, key, n)
	JOIN objects.buckets b ON b.name = w.bucket COLLATE "C"
	LEFT JOIN objects.pointers p ON p.bucket = b.name AND p.key = w.key COLLATE "C"
	LEFT JOIN objects.versions v ON v.id = p.version`

	lookupPatience = 20 * time.Millisecond // of look-ups that wait for another question
	maxAsked       = 128                   // in one question
)

func newLookups(db Database, log *slog.Logger) *lookups {
	half := max(1, int(db.pool.Config().MaxConns)/2) // commits need connections, too
	return &lookups{db: db, log: log, turns: turns[*lookup]{atOnce: min(2, half), together: maxAsked, patience: lookupPatience, most: half}}
}

// find is the current version of a key. The error is one of the database's.
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

// one asks for one key.
func (s *lookups) one(ctx context.Context, bucket, key string) (c current, err error) {
	err = s.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return c.scan(q.QueryRow(ctx, sqlCurrent, bucket, key))
	})
	return c, noRows(err, nil)
}

// ask asks for a group, the first of which has waited longest.
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
			if err := c.scan(behind{rows, []any{&n}}); err != nil {
				return err
			}
			found[n-1] = c
		}
		return rows.Err()
	})
}

// scan reads a row of currentColumns: there is such a bucket.
func (c *current) scan(row pgx.Row) error {
	var left int64
	err := c.Stored.scan(behind{row, []any{&c.key, &left, &c.identity}})
	c.bucket, c.left = err == nil, time.Duration(left)*time.Microsecond
	return err
}

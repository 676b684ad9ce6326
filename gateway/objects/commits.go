package objects

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/gateway/blob"
)

// Commits that arrive while others are in progress share one transaction: it costs PostgreSQL one flush and one answer.
// A commit never waits for others to join.

const (
	sqlCommitPuts = "SELECT n, modified, kept FROM objects.commit_puts($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"

	maxTogether = 64 // commits per transaction
	maxUnderWay = 2  // transactions at a time
)

// commits groups commits. Safe for concurrent use.
type commits struct {
	db    Database
	turns turns[*groupCommit]
}

func newCommits(db Database) *commits {
	return &commits{db: db, turns: turns[*groupCommit]{atOnce: maxUnderWay, perGroup: maxTogether}}
}

// commit describes the version to commit.
type commit struct {
	Put

	blob       blob.ID
	etag       string
	attributes Attributes
}

// groupCommit is the commit of an upload without conditions, as part of a group.
type groupCommit struct {
	commit

	ctx     context.Context //nolint:containedctx // of the request, in case it leads
	version [16]byte
	text    string // the encoded attributes

	done     bool // the group committed it
	modified time.Time
	kept     bool
	lost     error // the error of the group's transaction, which may have committed
}

// settle runs the transaction that decides an upload until its outcome is known: in a group (c then holds the result),
// or else alone. Alone it occupies no slot, because it may wait for a lock.
func (g *commits) settle(ctx context.Context, c *groupCommit, alone func(context.Context, Querier) error) error {
	c.ctx = ctx
	g.turns.take(c, g.run)
	switch {
	case c.done:
		return nil
	case c.lost != nil:
		return g.db.settle(ctx, c.lost, alone)
	}
	return g.db.Settle(ctx, alone)
}

// run commits a group. Uploads that the transaction did not commit are then decided alone.
func (g *commits) run(group []*groupCommit) {
	all := slices.Clone(group)
	slices.SortStableFunc(all, func(a, b *groupCommit) int { return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Key, b.Key)) })
	err := g.db.try(group[0].ctx, false, func(ctx context.Context, q Querier) error {
		rows, err := q.Query(ctx, sqlCommitPuts, columns(all)...)
		if err != nil {
			return err
		}
		var n int
		var modified time.Time
		var kept bool
		_, err = pgx.ForEachRow(rows, []any{&n, &modified, &kept}, func() error {
			all[n-1].done, all[n-1].modified, all[n-1].kept = true, modified, kept
			return nil
		})
		return err
	})
	for _, c := range all {
		if err != nil { // rows received before the error do not count
			c.done = false
			if !refused(err) {
				c.lost = err
			}
		}
	}
}

// columns returns the arguments of a group.
func columns(all []*groupCommit) []any {
	n := len(all)
	versions, blobs := make([]pgtype.UUID, n), make([]pgtype.UUID, n)
	buckets, keys, etags, attributes, resources := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	sizes, tokens := make([]int64, n), make([]int64, n)
	seals, invocations := make([][]byte, n), make([]*string, n)
	for i, c := range all {
		versions[i], blobs[i] = UUID(c.version), UUID(c.blob)
		buckets[i], keys[i], etags[i], attributes[i], resources[i] = c.Bucket, c.Key, c.etag, c.text, c.Proof.Resource
		sizes[i], tokens[i] = c.Size, int64(c.Proof.Token)
		seals[i], invocations[i] = c.Proof.SealHash, given(c.Invocation)
	}
	return []any{versions, buckets, keys, blobs, sizes, etags, attributes, resources, tokens, seals, invocations}
}

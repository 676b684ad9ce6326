package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

// Proof is what a change shows to the fence: zero where it has nothing to show.
type Proof struct {
	Resource string
	Token    fence.Token
	SealHash []byte // of a seal that was presented; empty but not nil: of none, for a monotone rule
}

// Change says who changes what.
type Change struct {
	Bucket, Key string
	Proof       Proof
	Invocation  string // the request's, the same in each try; "": none
	Conditions
}

// attempt is an id of the request for what leaves no row of its own; where the
// client gave none, it is that of the tries of this one.
func (ch Change) attempt() string {
	if ch.Invocation != "" {
		return ch.Invocation
	}
	return blob.NewID().String()
}

// Conditions of a change, evaluated in its commit.
type Conditions struct {
	IfMatch     *string // an ETag, "*" for any, or "!" and the ETag that must not be there
	IfNoneMatch bool
}

const (
	sqlPutTags        = "SELECT objects.put_tags($1, $2, $3, $4, $5, $6, $7, $8, $9)"
	sqlCommitDeletion = "SELECT id, kept_order IS NOT NULL FROM objects.commit_deletion_if($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
	sqlRemoveVersion  = "SELECT objects.remove_version_if($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
	sqlKeeps          = "SELECT objects.keeps($1)"
)

// PutTags replaces the tags of a version: the fence check and the change in one transaction.
func (c *Catalog) PutTags(ctx context.Context, ch Change, versionID string, tags map[string]string) error {
	version, err := parseVersion(versionID)
	if err != nil {
		return err
	}
	if tags == nil {
		tags = map[string]string{}
	}
	text, err := json.Marshal(tags)
	if err != nil {
		return fmt.Errorf("encode tags: %w", err)
	}
	return c.db.underGrant().Settle(ctx, Exec(sqlPutTags, UUID(blob.NewID()), ch.Bucket, ch.Key, version, string(text),
		ch.Proof.Resource, int64(ch.Proof.Token), ch.Proof.SealHash, given(ch.Invocation)))
}

// Expected is what a deletion expects of the version, beside its ETag; nil: anything.
type Expected struct {
	Size     *int64
	Modified *time.Time
}

// Removed says what a deletion did: it removed the version with the id, or, in
// a bucket that keeps versions, it made one, which is a marker.
type Removed struct {
	ID     *string
	Marker bool // what was made or removed is a deletion
}

// Remove takes a key's pointer away, or removes the named version for good: the
// fence check and the removal in one transaction.
func (c *Catalog) Remove(ctx context.Context, ch Change, versionID string, e Expected) (Removed, error) {
	wanted, err := parseVersion(versionID)
	if err != nil {
		return Removed{}, err
	}
	if wanted.Valid {
		return c.removeVersion(ctx, ch, wanted, e)
	}
	if versionID == NullVersion {
		keeps := false
		err := c.db.Once(ctx, func(ctx context.Context, q Querier) error { return q.QueryRow(ctx, sqlKeeps, ch.Bucket).Scan(&keeps) })
		if err != nil || keeps { // where each version has an id, there is none without
			return Removed{}, err
		}
	}
	id := [16]byte(blob.NewID())
	var kept bool
	args := []any{
		UUID(id), ch.Bucket, ch.Key, ch.Proof.Resource, int64(ch.Proof.Token), ch.Proof.SealHash, given(ch.Invocation), ch.IfMatch, e.Size, e.Modified,
	}
	err = c.db.underGrant().Settle(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlCommitDeletion, args...).Scan(&id, &kept)
	})
	if err != nil || !kept {
		return Removed{}, err
	}
	shown := blob.ID(id).String()
	return Removed{ID: &shown, Marker: true}, nil
}

// removeVersion removes one version for good; its bytes are the sweep's.
func (c *Catalog) removeVersion(ctx context.Context, ch Change, id pgtype.UUID, e Expected) (Removed, error) {
	var deletion *bool
	attempt := ch.attempt()
	err := c.db.underGrant().Settle(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlRemoveVersion, ch.Bucket, ch.Key, id, ch.Proof.Resource, int64(ch.Proof.Token), ch.Proof.SealHash,
			attempt, ch.IfMatch, e.Size, e.Modified).Scan(&deletion)
	})
	shown := blob.ID(id.Bytes).String()
	return Removed{ID: &shown, Marker: deletion != nil && *deletion}, err
}

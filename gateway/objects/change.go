package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

// Proof is what a change presents to the fence; zero if it has nothing to present.
type Proof struct {
	Resource string
	Token    fence.Token
	SealHash []byte // of the presented seal; empty but not nil: no seal, for a monotone rule
}

// Change describes a change and who makes it.
type Change struct {
	Bucket, Key string
	Proof       Proof
	Invocation  string // the request's, the same in each attempt; "": none
	Conditions
}

// attempt identifies the request for a change that leaves no row. If the client sent no id, it identifies the attempts
// of this call.
func (ch Change) attempt() string {
	if ch.Invocation != "" {
		return ch.Invocation
	}
	return blob.NewID().String()
}

// Conditions of a change, evaluated in its commit.
type Conditions struct {
	IfMatch     *string // an ETag, "*" for any, or "!" and an ETag that must not match
	IfNoneMatch bool
}

// Body is the body of an upload. It computes digests as it is read.
type Body interface {
	io.Reader
	// ReadWhole reads all of a body of the announced size.
	ReadWhole(data []byte) error
	// Finish reads the end of a body whose bytes have been stored, unless the store did. If the size differs from the
	// announced one, the error is [blob.ErrSize].
	Finish(size int64) error
	// Err returns the client's error that ended the body, if any.
	Err() error
	// ETag returns the ETag of the bytes.
	ETag() string
	// Checksum returns the verified checksum, once the body is read; "": none.
	Checksum() (algorithm, value string)
}

// Put is an upload of a whole object.
type Put struct {
	Change

	Size       int64 // announced, in bytes
	Body       Body
	Attributes func() Attributes // called once the body has been read
	Stage      bool              // only record it: the client's transaction publishes it
	Version    blob.ID           // of the version or stage that this makes; zero: a new one
	Doubted    bool              // most likely refused: even a small one stores nothing before the fence was asked
}

// id returns the id of the version or stage that this makes.
func (p Put) id() blob.ID {
	if p.Version == (blob.ID{}) {
		return blob.NewID()
	}
	return p.Version
}

// kind is the kind under which an attempt is recorded; "" if it makes a version.
func (p Put) kind() string {
	if p.Stage {
		return kindStage
	}
	return ""
}

// kindStage is the kind under which a staging attempt is recorded.
const kindStage = "stage"

const (
	sqlPutTags        = "SELECT objects.put_tags($1, $2, $3, $4, $5, $6, $7, $8, $9)"
	sqlCommitDeletion = "SELECT id, kept_order IS NOT NULL FROM objects.commit_deletion_if($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
	sqlRemoveVersion  = "SELECT objects.remove_version_if($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
	sqlKeeps          = "SELECT objects.keeps($1)"
)

// PutTags replaces the tags of a version. It checks the fence in the same transaction.
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

// Expected is what a deletion expects of the version besides its ETag; nil: anything.
type Expected struct {
	Size     *int64
	Modified *time.Time
}

// Removed describes a deletion: it removed the version with this id or, in a bucket that keeps versions, created one
// that is a deletion marker.
type Removed struct {
	ID     *string
	Marker bool // the version that was created or removed is a marker
}

// Remove removes a key's pointer, or permanently removes the named version. It checks the fence in the same
// transaction.
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
		if err != nil || keeps { // a bucket that keeps versions has no version without an id
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

// removeVersion permanently removes one version; the sweep deletes its bytes.
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

// Restore makes an older version of a key current again, under a grant of the resource that the key needs, and returns
// the new version's id. It copies no bytes. The error is [ErrNoVersion], [ErrNoBucket], or a refusal by the fence.
func (c *Catalog) Restore(ctx context.Context, bucket, key, version string, g fence.Grant) (string, error) {
	source, err := blob.ParseID(version)
	if err != nil {
		return "", &fence.InvalidError{Field: "version", Reason: "is not 32 lower-case hexadecimal digits"}
	}
	if err := g.Validate(); err != nil {
		return "", err
	}
	if g.Seal.IsZero() {
		return "", &fence.InvalidError{Field: "grant", Reason: "has no seal; it reads TOKEN.SEAL"}
	}
	var v struct{ id [16]byte }
	args := []any{UUID(blob.NewID()), bucket, key, UUID(source), g.Resource, int64(g.Token), g.Seal.Hash(), nil, nil, false}
	err = c.db.underGrant().Settle(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, "SELECT id FROM objects.restore_version($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)", args...).Scan(&v.id)
	})
	if err != nil {
		return "", notRestored(err, version, bucket, key)
	}
	return blob.ID(v.id).String(), nil
}

// notRestored says why a version cannot become current.
func notRestored(err error, version, bucket, key string) error {
	if errors.Is(err, ErrNoVersion) {
		return fmt.Errorf("%w: %s of %q in %q", ErrNoVersion, version, key, bucket)
	}
	return err
}

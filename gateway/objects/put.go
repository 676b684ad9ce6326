package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlBeginUpload = "SELECT objects.begin_upload($1, $2, $3, $4, $5, $6)"
	sqlEarlier     = "SELECT objects.earlier_result($1, $2, $3, $4)"
	sqlCommitPut   = "SELECT version, modified, kept FROM objects.commit_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
	sqlVersion     = "SELECT " + versionColumns + " FROM objects.versions WHERE id = $1"
)

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

// noted is the kind under which an attempt is recorded; "" if it makes a version.
func (p Put) noted() string {
	if p.Stage {
		return staged
	}
	return ""
}

// Put stores the body as a blob, and commits it.
func (w *Writer) Put(ctx context.Context, p Put) (Stored, error) {
	if p.Size <= maxWhole && !p.Doubted {
		return w.putWhole(ctx, p)
	}
	id, err := w.announce(ctx, p.Change, p.noted())
	if err != nil {
		return Stored{}, err
	}
	if err := w.stream(ctx, id, p.Body, p.Size); err != nil {
		w.discard(ctx, id)
		return Stored{}, err
	}
	return w.commit(ctx, commit{Put: p, blob: id, etag: p.Body.ETag(), attributes: p.Attributes()})
}

// announce records a new blob, and refuses at once what the commit would refuse. If an earlier attempt of the request
// took effect, the commit returns that attempt's result, even if the lease has another holder by now, so the upload
// continues. what is "" for a version, else the kind under which the attempt is recorded.
func (w *Writer) announce(ctx context.Context, p Change, what string) (blob.ID, error) {
	id := blob.NewID()
	err := w.db.Settle(ctx, Exec(sqlBeginUpload, UUID(id), p.Bucket, p.Key, p.Proof.Resource, int64(p.Proof.Token), p.Proof.SealHash))
	if err != nil {
		if _, done, failed := w.earlier(ctx, p, what); failed != nil {
			err = failed
		} else if done {
			err = nil
		}
	}
	return id, err
}

// result is what an earlier attempt of a request did.
type result struct {
	Version   pgtype.UUID `json:"version"` // that it made; NULL if it made none
	Stage     pgtype.UUID `json:"stage"`
	ETag      string      `json:"etag"` // of a part, as is the checksum
	Algorithm string      `json:"checksum_algorithm"`
	Checksum  string      `json:"checksum"`
}

// earlier looks for an earlier attempt of a request that is about to be refused, and waits for one in progress. The
// error is that of the look-up: then it is unknown whether anything was done.
func (w *Writer) earlier(ctx context.Context, p Change, what string) (made result, done bool, err error) {
	if p.Invocation == "" {
		return result{}, false, nil
	}
	var found *result
	err = w.db.Settle(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlEarlier, p.Bucket, p.Key, p.Invocation, given(what)).Scan(&found)
	})
	switch {
	case err != nil:
		return result{}, false, &unknownError{cause: err}
	case found == nil:
		return result{}, false, nil
	}
	return *found, true, nil
}

// unsettled reports whether an error is the answer, whatever an earlier attempt of the request did.
func unsettled(why error) bool {
	return errors.Is(why, fence.ErrUnknown) || errors.Is(why, ErrDatabaseAway)
}

// Before returns the version that an earlier attempt of a request made or staged. why is the reason for which the
// request cannot be carried out now. If there was no earlier attempt, Before returns why.
func (w *Writer) Before(ctx context.Context, p Change, stages bool, why error) (Stored, error) {
	if unsettled(why) {
		return Stored{}, why
	}
	made, done, err := w.earlier(ctx, p, Put{Stage: stages}.noted())
	if err != nil {
		return Stored{}, err
	}
	if !done {
		return Stored{}, why
	}
	look, id := w.versionOf, made.Version
	if stages {
		look, id = w.stageOf, made.Stage
	}
	v, err := look(ctx, id.Bytes)
	if stages && errors.Is(err, pgx.ErrNoRows) { // the stage was discarded
		return Stored{}, why
	}
	if err != nil {
		return Stored{}, &unknownError{cause: err}
	}
	return v, nil
}

// maxWhole is how many bytes of a body are read before anything is stored. For a small one the commit alone decides
// whether it is refused.
const maxWhole = 64 << 10

var wholes = sync.Pool{New: func() any { return new([maxWhole]byte) }}

// putWhole stores a body from memory, as a reserved blob. If that was discarded, it stores the body again as a new
// blob.
func (w *Writer) putWhole(ctx context.Context, p Put) (Stored, error) {
	buf := wholes.Get().(*[maxWhole]byte)
	defer wholes.Put(buf)
	data := buf[:p.Size]
	if err := p.Body.ReadWhole(data); err != nil {
		return Stored{}, fault(p.Body, p.Size, err)
	}
	if err := w.owned(ctx); err != nil {
		return Stored{}, fault(p.Body, p.Size, err)
	}
	c := commit{Put: p, etag: p.Body.ETag(), attributes: p.Attributes()}
	if id, ok := w.reserve.take(); ok {
		c.blob = id
		v, err := w.storeWhole(ctx, c, data, w.reserve.places.Fill)
		if !errors.Is(err, ErrGivenUp) && !errors.Is(err, blob.ErrNotFound) && !errors.Is(err, blob.ErrFilled) {
			return v, err
		}
		w.reserve.drop()
	}
	id, err := w.announce(ctx, p.Change, p.noted())
	if err != nil {
		return Stored{}, err
	}
	c.blob = id
	return w.storeWhole(ctx, c, data, w.store.Put)
}

// storeWhole stores the bytes and commits.
func (w *Writer) storeWhole(ctx context.Context, c commit, data []byte, store func(context.Context, blob.ID, io.Reader, int64) error) (Stored, error) {
	all := bytes.NewReader(data)
	err := store(ctx, c.blob, all, c.Size)
	if err == nil && all.Len() > 0 {
		err = fmt.Errorf("%w: the store left %d bytes unread", blob.ErrSize, all.Len())
	}
	if err != nil {
		w.discard(ctx, c.blob)
		return Stored{}, fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
	return w.commit(ctx, c)
}

// stream stores the body's bytes as a blob, holding no transaction.
func (w *Writer) stream(ctx context.Context, id blob.ID, body Body, size int64) error {
	err := w.owned(ctx)
	if err == nil {
		err = w.store.Put(ctx, id, body, size)
	}
	if err == nil {
		err = body.Finish(size)
	}
	return fault(body, size, err)
}

// fault returns the error of a body, or of storing it.
func fault(body Body, size int64, err error) error {
	switch {
	case err == nil:
		return nil
	case body.Err() != nil:
		return &BodyError{Cause: body.Err()}
	case errors.Is(err, blob.ErrSize):
		return ErrIncomplete
	case errors.Is(err, blob.ErrTooLarge):
		return &TooLargeError{Size: size}
	case errors.Is(err, ErrDatabaseAway):
		return err
	}
	return fmt.Errorf("%w: %w", ErrStoreFailed, err)
}

// commit describes the version to commit.
type commit struct {
	Put

	blob       blob.ID
	etag       string
	attributes Attributes
}

// commit checks the fence and swaps the pointer. It returns the version that this request produced, also if an earlier
// attempt of the same request was committed already.
func (w *Writer) commit(ctx context.Context, c commit) (Stored, error) {
	if c.Stage {
		return w.stage(ctx, c.id(), c.blob, staging{
			Change: c.Change, blobs: []pgtype.UUID{UUID(c.blob)}, sizes: []int64{c.Size}, etag: c.etag, attributes: c.attributes,
		})
	}
	text, err := json.Marshal(c.attributes)
	if err != nil {
		return Stored{}, fmt.Errorf("encode attributes: %w", err)
	}
	v := Stored{
		ID: c.id(), Blobs: [][16]byte{c.blob}, BlobSizes: []int64{c.Size}, Size: c.Size, ETag: c.etag, Attributes: c.attributes,
	}
	var made [16]byte
	alone := func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlCommitPut, UUID(v.ID), c.Bucket, c.Key, UUID(c.blob), c.Size, c.etag, string(text),
			c.Proof.Resource, int64(c.Proof.Token), c.Proof.SealHash, given(c.Invocation), c.IfMatch, c.IfNoneMatch).Scan(&made, &v.CreatedAt, &v.Kept)
	}
	began := time.Now()
	if c.IfMatch != nil || c.IfNoneMatch {
		err = w.db.Settle(ctx, alone)
	} else {
		group := &together{commit: c, version: v.ID, text: string(text)}
		err = w.commits.settle(ctx, group, alone)
		if group.done {
			made, v.CreatedAt, v.Kept = v.ID, group.modified, group.kept
		}
	}
	w.decided(time.Since(began))
	if err == nil && made == v.ID {
		return v, nil
	}
	if err == nil {
		w.forget(ctx, c.blob) // an earlier attempt's bytes count for this request
		if v, err = w.versionOf(ctx, made); err != nil {
			return Stored{}, &unknownError{cause: err}
		}
		return v, nil
	}
	if errors.Is(err, ErrGivenUp) {
		w.forget(ctx, c.blob) // the sweep had discarded it, and its row may be gone: nothing else knows these bytes
		return Stored{}, ErrGivenUp
	}
	gone, answered := w.giveUp(ctx, c.blob)
	if gone {
		if unknown, ok := errors.AsType[*unknownError](err); ok {
			err = unknown.cause // known now: it cannot take effect any more
		}
		return Stored{}, err
	}
	if answered {
		if stands, lost := w.versionOf(ctx, v.ID); lost == nil {
			return stands, nil // it did take effect
		}
	}
	return Stored{}, err
}

func (w *Writer) versionOf(ctx context.Context, id [16]byte) (v Stored, err error) {
	err = w.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return v.scan(q.QueryRow(ctx, sqlVersion, UUID(id)))
	})
	return v, err
}

// decide runs the transaction that decides an upload.
func (w *Writer) decide(ctx context.Context, f func(context.Context, Querier) error) error {
	began := time.Now()
	err := w.db.Settle(ctx, f)
	w.decided(time.Since(began))
	return err
}

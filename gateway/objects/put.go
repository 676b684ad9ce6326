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

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlBeginUpload = "SELECT objects.begin_upload($1, $2, $3, $4, $5, $6)"
	sqlAttempted   = "SELECT EXISTS (SELECT FROM objects.versions WHERE bucket = $1 AND key = $2 AND invocation_id = $3)"
	sqlCommitPut   = "SELECT version, modified, kept FROM objects.commit_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
	sqlVersion     = "SELECT " + versionColumns + " FROM objects.versions WHERE id = $1"
)

// Put is an upload of a whole object.
type Put struct {
	Change

	Size       int64 // announced, in bytes
	Body       Body
	Attributes func() Attributes // asked for when the body has been read
	Stage      bool              // record it only: a transaction of the client's publishes it
}

// Put stores the body as a blob, and commits.
func (w *Writer) Put(ctx context.Context, p Put) (Stored, error) {
	if p.Size <= maxWhole {
		return w.putWhole(ctx, p)
	}
	id, err := w.announce(ctx, p.Change)
	if err != nil {
		return Stored{}, err
	}
	if err := w.stream(ctx, id, p.Body, p.Size); err != nil {
		w.discard(ctx, id)
		return Stored{}, err
	}
	return w.commit(ctx, commit{Put: p, blob: id, etag: p.Body.ETag(), attributes: p.Attributes()})
}

// announce makes a new blob known, and refuses at once what the commit would
// refuse. The commit answers a request whose earlier attempt took effect as that
// one, whoever holds the lease by now: so the upload goes on.
func (w *Writer) announce(ctx context.Context, p Change) (blob.ID, error) {
	id := blob.NewID()
	err := w.db.Settle(ctx, Exec(sqlBeginUpload, UUID(id), p.Bucket, p.Key, p.Proof.Resource, int64(p.Proof.Token), p.Proof.SealHash))
	if err != nil && w.attempted(ctx, p) {
		err = nil
	}
	return id, err
}

// attempted reports whether an earlier attempt of the request took effect.
func (w *Writer) attempted(ctx context.Context, p Change) (done bool) {
	if p.Invocation == "" {
		return false
	}
	err := w.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlAttempted, p.Bucket, p.Key, p.Invocation).Scan(&done)
	})
	return err == nil && done
}

// maxWhole is how many bytes of a body are read before anything is stored: of a
// small one the commit alone may say whether it is refused.
const maxWhole = 64 << 10

var wholes = sync.Pool{New: func() any { return new([maxWhole]byte) }}

// putWhole stores a body that it has read, as a reserved blob. Where that had
// been given up, the body is still there for another try.
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
	id, err := w.announce(ctx, p.Change)
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

// fault says what went wrong with a body, or with storing it.
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

// commit is what becomes a version.
type commit struct {
	Put

	blob       blob.ID
	etag       string
	attributes Attributes
}

// commit checks the fence and swaps the pointer. The version that it returns is
// the one that this request produced, also where an earlier attempt of the same
// request had been committed already.
func (w *Writer) commit(ctx context.Context, c commit) (Stored, error) {
	if c.Stage {
		return w.stage(ctx, c.blob, staging{
			Change: c.Change, blobs: []pgtype.UUID{UUID(c.blob)}, sizes: []int64{c.Size}, etag: c.etag, attributes: c.attributes,
		})
	}
	text, err := json.Marshal(c.attributes)
	if err != nil {
		return Stored{}, fmt.Errorf("encode attributes: %w", err)
	}
	v := Stored{
		ID: blob.NewID(), Blobs: [][16]byte{c.blob}, BlobSizes: []int64{c.Size}, Size: c.Size, ETag: c.etag, Attributes: c.attributes,
	}
	var made [16]byte
	err = w.decide(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlCommitPut, UUID(v.ID), c.Bucket, c.Key, UUID(c.blob), c.Size, c.etag, string(text),
			c.Proof.Resource, int64(c.Proof.Token), c.Proof.SealHash, given(c.Invocation), c.IfMatch, c.IfNoneMatch).Scan(&made, &v.CreatedAt, &v.Kept)
	})
	if err == nil && made == v.ID {
		return v, nil
	}
	if err == nil {
		w.forget(ctx, c.blob) // an earlier attempt's bytes stand for this request
		if v, err = w.versionOf(ctx, made); err != nil {
			return Stored{}, &unknownError{cause: err}
		}
		return v, nil
	}
	if errors.Is(err, ErrGivenUp) {
		w.forget(ctx, c.blob) // the sweep had given it up, and its row may be gone: nobody else knows these bytes
		return Stored{}, ErrGivenUp
	}
	gone, answered := w.giveUp(ctx, c.blob)
	if gone {
		if unknown, ok := errors.AsType[*unknownError](err); ok {
			err = unknown.cause // known now: it can't take effect any more
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

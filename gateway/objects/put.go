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

	"github.com/fencegate/fencegate/gateway/blob"
)

const sqlCommitPut = "SELECT version, modified, kept FROM objects.commit_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"

// Put stores the body as a blob, and commits it.
func (w *Writer) Put(ctx context.Context, p Put) (Stored, error) {
	if p.Size <= maxWhole && !p.Doubted {
		return w.putWhole(ctx, p)
	}
	id, err := w.announce(ctx, p.Change, p.kind())
	if err != nil {
		return Stored{}, err
	}
	if err := w.stream(ctx, id, p.Body, p.Size); err != nil {
		w.discard(ctx, id)
		return Stored{}, err
	}
	return w.commit(ctx, commit{Put: p, blob: id, etag: p.Body.ETag(), attributes: p.Attributes()})
}

// Before returns the version that an earlier attempt of a request made or staged. why is the reason for which the
// request cannot be carried out now. If there was no earlier attempt, Before returns why.
func (w *Writer) Before(ctx context.Context, p Change, stages bool, why error) (Stored, error) {
	if isFinal(why) {
		return Stored{}, why
	}
	made, done, err := w.earlier(ctx, p, Put{Stage: stages}.kind())
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
	id, err := w.announce(ctx, p.Change, p.kind())
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
		group := &groupCommit{commit: c, version: v.ID, text: string(text)}
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

const sqlRestore = "SELECT " + versionColumns + " FROM objects.restore_version($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"

const storeWorkers = 8 // concurrent requests to the store

// Restore makes an older version of a key current again, by a new version that lists the same blobs. It first checks
// that every blob exists with its recorded size: after a restored backup of the database or the store, PostgreSQL may
// list missing blobs.
func (w *Writer) Restore(ctx context.Context, p Change, source Stored) (Stored, error) {
	if err := w.stored(ctx, source); err != nil {
		if _, gone := w.reader.Find(ctx, p.Bucket, p.Key, blob.ID(source.ID).String()); gone != nil {
			err = gone // released and swept since it was found
		}
		return Stored{}, err
	}
	var v Stored
	args := []any{
		UUID(blob.NewID()), p.Bucket, p.Key, UUID(source.ID), p.Proof.Resource, int64(p.Proof.Token), p.Proof.SealHash,
		given(p.Invocation), p.IfMatch, p.IfNoneMatch,
	}
	err := w.db.Settle(ctx, func(ctx context.Context, q Querier) error { return v.scan(q.QueryRow(ctx, sqlRestore, args...)) })
	return v, err
}

// stored checks that the store has a version's blobs, with their sizes; several at a time, because there may be many.
func (w *Writer) stored(ctx context.Context, v Stored) error {
	errs := make([]error, len(v.Blobs))
	free := make(chan struct{}, storeWorkers)
	var wg sync.WaitGroup
	for i, id := range v.Blobs {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			size, err := w.store.Size(ctx, id)
			switch {
			case errors.Is(err, blob.ErrNotFound):
				errs[i] = fmt.Errorf("the blob store lacks a blob of version %x: %w", v.ID, err)
			case err != nil:
				errs[i] = fmt.Errorf("%w: %w", ErrStoreFailed, err)
			case size != v.BlobSizes[i]:
				errs[i] = fmt.Errorf("blob %s of version %x: %w: the store has %d bytes of %d", blob.ID(id), v.ID, blob.ErrSize, size, v.BlobSizes[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

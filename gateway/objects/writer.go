package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlBeginUpload   = "SELECT objects.begin_upload($1, $2, $3, $4, $5, $6)"
	sqlEarlier       = "SELECT objects.earlier_result($1, $2, $3, $4)"
	sqlVersion       = "SELECT " + versionColumns + " FROM objects.versions WHERE id = $1"
	sqlAbandonUpload = "SELECT objects.abandon_upload($1)"
	sqlIsUnnamed     = "SELECT NOT EXISTS (SELECT FROM objects.blobs WHERE id = $1 AND state <> 'condemned')"
)

// Config says what a [Writer] needs.
type Config struct {
	DB      Database
	Store   blob.Store
	Log     *slog.Logger
	Owned   func(context.Context) error // returns nil while the store belongs to this database
	Decided func(took time.Duration)    // called after each transaction that decides an upload
	Reserve int                         // blobs kept ready, at most; none below 1
}

// Writer stores objects: the bytes go into a new blob to which nothing points, and one transaction checks the fence and
// swaps the key's pointer. Safe for concurrent use.
type Writer struct {
	db      Database
	store   blob.Store
	log     *slog.Logger
	owned   func(context.Context) error
	decided func(took time.Duration)
	reader  *Reader
	reserve *reserve // of blobs for small uploads
	commits *commits
}

// NewWriter creates a writer beside a reader of the same database and store. It reserves blobs until ctx ends; Close
// returns them.
func NewWriter(ctx context.Context, cfg Config, reader *Reader) *Writer {
	w := &Writer{db: cfg.DB.underGrant(), store: cfg.Store, log: cfg.Log, owned: cfg.Owned, decided: cfg.Decided, reader: reader, commits: newCommits(cfg.DB.underGrant())}
	w.reserve = newReserve(ctx, cfg.DB, cfg.Store, cfg.Owned, cfg.Log, cfg.Reserve)
	return w
}

// Close returns the reserved blobs. Later uploads announce blobs of their own.
func (w *Writer) Close() { w.reserve.close() }

// WarmUp reserves a first batch of blobs, as the first uploads do.
func (w *Writer) WarmUp() { w.reserve.warmUp() }

// Reserved returns the reserved blobs. PostgreSQL cannot list them, because their rows look like those of uploads in
// progress. settled is false while a batch is being announced.
func (w *Writer) Reserved() (ids []blob.ID, settled bool) { return w.reserve.ready() }

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

// isFinal reports whether an error is the answer, whatever an earlier attempt of the request did.
func isFinal(why error) bool {
	return errors.Is(why, fence.ErrUnknown) || errors.Is(why, ErrDatabaseAway)
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

// discard discards an upload whose commit was not and will not be requested, so it deletes the bytes even if the row is
// gone.
func (w *Writer) discard(ctx context.Context, id blob.ID) {
	if gone, _ := w.giveUp(ctx, id); !gone {
		w.forget(ctx, id)
	}
}

// giveUp discards a pending upload: first its row, so that no commit can publish it, then its bytes. gone: nothing will
// ever point at it. answered but not gone is final: it was committed, or discarded before. The sweep handles failures.
func (w *Writer) giveUp(ctx context.Context, id blob.ID) (gone, answered bool) {
	err := w.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlAbandonUpload, UUID(id)).Scan(&gone)
	})
	if err == nil && gone {
		w.erase(ctx, id)
	}
	if err != nil {
		w.log.Warn("s3: failed to discard an upload; the sweep discards it", "blob", id, "error", err)
	}
	return gone, err == nil
}

// forget deletes the bytes of a blob to which nothing can point: its row is condemned, or missing. It checks that in
// any case, because a copy of this process may have used the same id. The sweep handles failures.
func (w *Writer) forget(ctx context.Context, id blob.ID) {
	var unnamed bool
	err := w.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return q.QueryRow(ctx, sqlIsUnnamed, UUID(id)).Scan(&unnamed)
	})
	if err != nil {
		w.log.Warn("s3: failed to delete the bytes of a discarded upload; the sweep deletes them", "blob", id, "error", err)
	}
	if unnamed {
		w.erase(ctx, id)
	}
}

// erase deletes the bytes of a condemned blob. The sweep handles failures.
func (w *Writer) erase(ctx context.Context, id blob.ID) {
	if err := w.store.Delete(ctx, id); err != nil {
		w.log.Warn("s3: failed to delete a blob; the sweep deletes it", "blob", id, "error", err)
	}
}

// decide runs the transaction that decides an upload.
func (w *Writer) decide(ctx context.Context, f func(context.Context, Querier) error) error {
	began := time.Now()
	err := w.db.Settle(ctx, f)
	w.decided(time.Since(began))
	return err
}

func (w *Writer) versionOf(ctx context.Context, id [16]byte) (v Stored, err error) {
	err = w.db.Once(ctx, func(ctx context.Context, q Querier) error {
		return v.scan(q.QueryRow(ctx, sqlVersion, UUID(id)))
	})
	return v, err
}

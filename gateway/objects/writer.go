package objects

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
)

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

package objects

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
)

// Body is what an upload stores. It computes digests as it is read.
type Body interface {
	io.Reader
	// ReadWhole reads all of a body of the announced size.
	ReadWhole(data []byte) error
	// Finish reads the end of a body whose bytes have been stored, unless the store
	// did, and says whether it is what was announced: else it is [blob.ErrSize].
	Finish(size int64) error
	// Err is the error of the client's that ended it, if any.
	Err() error
	// ETag is that of the bytes.
	ETag() string
	// Checksum is the verified one, once the body is read; "": none.
	Checksum() (algorithm, value string)
}

// Config says what a writer needs.
type Config struct {
	DB      Database
	Store   blob.Store
	Log     *slog.Logger
	Owned   func(context.Context) error // nil while the store is this database's
	Decided func(took time.Duration)    // the transaction that decides an upload has ended, well or not
	Reserve int                         // blobs that are kept ready, at most; none below 1
}

// Writer stores objects: the bytes go into a new blob, which nothing points at,
// and one transaction checks the fence and swaps the key's pointer. Safe for
// concurrent use.
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

// NewWriter makes a writer beside a reader of the same database and store. The
// blobs that it keeps ready are made until ctx ends; Close gives them back.
func NewWriter(ctx context.Context, cfg Config, reader *Reader) *Writer {
	w := &Writer{db: cfg.DB.underGrant(), store: cfg.Store, log: cfg.Log, owned: cfg.Owned, decided: cfg.Decided, reader: reader, commits: newCommits(cfg.DB.underGrant())}
	w.reserve = newReserve(ctx, cfg.DB, cfg.Store, cfg.Owned, cfg.Log, cfg.Reserve)
	return w
}

// Close gives the blobs back that are kept ready. Uploads that come later announce
// blobs of their own.
func (w *Writer) Close() { w.reserve.close() }

// WarmUp makes a first batch of blobs ready, as the first uploads do.
func (w *Writer) WarmUp() { w.reserve.warmUp() }

// Reserved are the blobs that are kept ready. PostgreSQL can't say it: their rows
// look like those of uploads under way. It is not settled while a batch is announced.
func (w *Writer) Reserved() (ids []blob.ID, settled bool) { return w.reserve.ready() }

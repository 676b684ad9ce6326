package s3

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
)

// database runs the statements on the schema objects, each a transaction of its
// own. Safe for concurrent use.
type database struct {
	pool    *pgxpool.Pool
	timeout time.Duration // of one statement, waiting for a connection included
	fresh   chan struct{} // holds one for each connection beside the pool's
}

func newDatabase(pool *pgxpool.Pool, timeout time.Duration) database {
	return database{pool: pool, timeout: timeout, fresh: make(chan struct{}, pool.Config().MaxConns)}
}

// errDatabaseAway: PostgreSQL can't be reached, and nothing was changed.
var errDatabaseAway = errors.New("PostgreSQL can't be reached")

// querier is a pool or a connection.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// refused reports whether PostgreSQL itself said no, so that the statement
// certainly changed nothing. An error that ends the session is not such a word:
// it can come between a commit and its acknowledgement.
func refused(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && severity(pgErr) == "ERROR"
}

func severity(e *pgconn.PgError) string {
	if e.SeverityUnlocalized != "" {
		return e.SeverityUnlocalized
	}
	return e.Severity
}

// transient reports whether a refusal may not come again: a serialization
// failure, a deadlock, or a server that starts or stops.
func transient(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(pgErr.Code, "40") || strings.HasPrefix(pgErr.Code, "53") || strings.HasPrefix(pgErr.Code, "57P"))
}

// once runs a statement that changes nothing, or whose effect nobody relies on.
func (d database) once(ctx context.Context, f func(context.Context, querier) error) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	err := f(ctx, d.pool)
	switch {
	case err == nil, errors.Is(err, pgx.ErrNoRows):
		return err
	case refused(err) && !transient(err):
		return translate(err)
	}
	if _, ours := errors.AsType[pgx.ScanArgError](err); ours {
		return err
	}
	return fmt.Errorf("%w: %w", errDatabaseAway, err)
}

const (
	settleTries = 5
	settlePause = 50 * time.Millisecond // doubles with each try
)

// settle runs a statement that can be repeated, until its outcome is known: a
// lost acknowledgement is followed by the same statement on a fresh connection,
// which locks the rows that the first try may still be changing, and answers
// with what that one did. An outcome that stays unknown is an [*unknownError].
//
// Connections beside the pool's are at most as many as the pool's, so that a
// PostgreSQL in trouble is not asked for one by each request.
func (d database) settle(ctx context.Context, f func(context.Context, querier) error) error {
	lost := false
	pause := settlePause
	for try := 1; ; try++ {
		err := d.try(ctx, try > 1, f)
		if err == nil {
			return nil
		}
		certain := refused(err) && !transient(err)
		lost = lost || !refused(err) && !pgconn.SafeToRetry(err)
		if certain {
			err = translate(err)
			if _, fenced := fence.CodeOf(err); fenced {
				return err // a try that is still on its way will be refused, too: tokens only rise
			}
		} else {
			err = fmt.Errorf("%w: %w", errDatabaseAway, err)
		}
		switch {
		case !certain && try < settleTries && ctx.Err() == nil:
		case lost:
			return &unknownError{cause: err}
		default:
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause *= 2
	}
}

// unknownError: a statement was sent, and nobody knows what became of it.
type unknownError struct{ cause error } // what the last try said

func (e *unknownError) Error() string        { return "outcome is unknown: " + e.cause.Error() }
func (e *unknownError) Unwrap() error        { return e.cause }
func (e *unknownError) Is(target error) bool { return target == fence.ErrUnknown }

func (d database) try(ctx context.Context, fresh bool, f func(context.Context, querier) error) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	if !fresh {
		conn, err := d.pool.Acquire(ctx)
		if err != nil {
			return notSent{err}
		}
		defer conn.Release()
		return f(ctx, conn)
	}
	select {
	case d.fresh <- struct{}{}:
		defer func() { <-d.fresh }()
	case <-ctx.Done():
		return notSent{ctx.Err()}
	}
	conn, err := pgx.ConnectConfig(ctx, d.pool.Config().ConnConfig)
	if err != nil {
		return notSent{err}
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(ctx, conn)
}

// notSent marks an error from before the statement was sent.
type notSent struct{ error }

func (e notSent) Unwrap() error     { return e.error }
func (e notSent) SafeToRetry() bool { return true }

// exec runs a statement without a result.
func exec(sql string, args ...any) func(context.Context, querier) error {
	return func(ctx context.Context, q querier) error {
		rows, err := q.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	}
}

// version is a row of objects.versions.
type version struct {
	ID         [16]byte
	Blobs      [][16]byte
	BlobSizes  []int64
	Size       int64
	ETag       string
	Attributes attributes
	CreatedAt  time.Time
	Kept       bool // its bucket keeps versions, so clients see its id
}

// shownID is the id for clients of a bucket that keeps versions, else nil.
func (v version) shownID() *string {
	if !v.Kept {
		return nil
	}
	id := blob.ID(v.ID).String()
	return &id
}

// attributes are what a read gives back beside the bytes. Empty ones are left out.
type attributes struct {
	ContentType        string            `json:"content_type,omitempty"`
	ContentEncoding    string            `json:"content_encoding,omitempty"`
	ContentDisposition string            `json:"content_disposition,omitempty"`
	ContentLanguage    string            `json:"content_language,omitempty"`
	CacheControl       string            `json:"cache_control,omitempty"`
	Expires            string            `json:"expires,omitempty"`
	Metadata           map[string]string `json:"metadata,omitempty"`
	ChecksumAlgorithm  string            `json:"checksum_algorithm,omitempty"`
	Checksum           string            `json:"checksum,omitempty"`       // base64
	ChecksumType       string            `json:"checksum_type,omitempty"`  // of an upload under way; a checksum shows it by itself
	PartChecksums      []string          `json:"part_checksums,omitempty"` // base64; read only where they are asked for
	Tags               map[string]string `json:"tags,omitempty"`
}

func (v *version) scan(row pgx.Row) error {
	var text []byte
	if err := row.Scan(&v.ID, &v.Blobs, &v.BlobSizes, &v.Size, &v.ETag, &text, &v.CreatedAt, &v.Kept); err != nil {
		return err
	}
	if err := json.Unmarshal(text, &v.Attributes); err != nil {
		return fmt.Errorf("read the attributes of version %x: %w", v.ID, err)
	}
	return nil
}

// uuid is an id as a statement's argument, in any of pgx's modes.
func uuid(id [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

const versionColumns = "id, blobs, blob_sizes, size, etag, attributes - 'part_checksums', created_at, objects.keeps(bucket)"

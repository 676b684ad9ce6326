package s3

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/versity/versitygw/auth"
	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
	"github.com/fencegate/fencegate/wire"
)

// backend implements versitygw's operations. Operations that it lacks answer NotImplemented through the embedded type.
// versitygw's contexts are [fasthttp.RequestCtx]: they do not end when the client disconnects or when the server begins
// to stop. So the work runs under base, with its own deadlines.
type backend struct {
	front.BackendUnsupported

	*guard

	cfg    config
	acl    []byte
	reader *objects.Reader
	writer *objects.Writer
	keeper *maintenance.Keeper // knows whether the store belongs to this database
	copies *copies
}

var _ front.Backend = (*backend)(nil)

func newBackend(base context.Context, cfg config, uploads *slots) (*backend, error) {
	acl, err := json.Marshal(auth.ACL{Owner: cfg.RootAccessKey})
	if err != nil {
		return nil, fmt.Errorf("encode the buckets' ACL: %w", err)
	}
	db := objects.NewDatabase(cfg.Pool, cfg.DatabaseTimeout).Changes(cfg.Changes)
	b := &backend{cfg: cfg, acl: acl, keeper: maintenance.New(db, cfg.Store), copies: newCopies(uploads, 6*cfg.patience, cfg.patience)}
	b.guard = &guard{base: base, root: cfg.RootAccessKey, keys: cfg.Keys, catalog: objects.NewCatalog(db)}
	b.writes, b.reads = newLeaseCaches(cfg.Leases)
	b.reader = objects.NewReader(db, cfg.Store, cfg.Logger)
	b.writer = objects.NewWriter(base, objects.Config{
		DB: db, Store: cfg.Store, Log: cfg.Logger, Owned: b.keeper.Owned, Decided: cfg.Metrics.Committed, Reserve: cfg.Reserve,
	}, b.reader)
	return b, nil
}

func (*backend) String() string { return "fencegate" }

// fail turns an error of an operation into the client's error, and logs what the operator must know.
func (b *backend) fail(r request, bucket, operation string, err error) error {
	if r.expired != nil {
		err = r.expired.answer(err)
	}
	if code, ok := fence.CodeOf(err); ok {
		e := s3error.Refusal(err, code)
		r.setFencingHeaders(e.Fencing)
		b.recordRefusal(r, bucket, operation, err)
		return e
	}
	unknown := errors.Is(err, fence.ErrUnknown)
	if m, ok := errors.AsType[*objects.MarkerError](err); ok && r.http != nil {
		r.http.Response.Header.Set("X-Amz-Delete-Marker", "true")
		r.http.Response.Header.Set("X-Amz-Version-Id", m.ID.String())
	}
	if e, ok := errors.AsType[unmodifiedError](err); ok {
		e.setHeaders(r)
	}
	if e := s3error.Of(err, bucket); e != nil && !unknown {
		return e
	}
	busy, isBusy := errors.AsType[*objects.BusyError](err)
	b.cfg.Logger.Error("s3: failed", "operation", operation, "bucket", bucket, "request_id", r.id(), "error", err)
	switch {
	case unknown && r.invocation == "":
		return s3error.Unavailable(s3error.MessageUnknownOnce)
	case unknown:
		return s3error.Unavailable(s3error.MessageUnknown)
	case isBusy:
		return r.unavailable(s3error.MessageBusy(busy.State))
	case errors.Is(err, objects.ErrDoubted):
		return r.unavailable(s3error.MessageDoubted)
	case errors.Is(err, objects.ErrDatabaseAway):
		return r.unavailable(s3error.MessageDatabaseAway)
	case errors.Is(err, blob.ErrBusy):
		return s3err.GetAPIError(s3err.ErrSlowDown)
	case errors.Is(err, objects.ErrStoreFailed):
		return r.unavailable(s3error.MessageStoreFailed)
	}
	return s3err.GetAPIError(s3err.ErrInternalError)
}

// recordRefusal records a request that the fence refused as an event.
func (b *backend) recordRefusal(r request, bucket, operation string, err error) {
	if b.cfg.Tell == nil {
		return
	}
	about := activity.Event{Surface: wire.SurfaceS3, Statement: operation, Table: bucket}
	if r.http != nil {
		account := accountOf(r.http)
		about.Client, about.App, about.Login = r.http.RemoteAddr().String(), r.header("User-Agent"), account.Access
	}
	if e, ok := activity.Refused(err, about); ok {
		if e.Resource == "" { // from the credentials, if the fence was not asked
			e.Resource, e.Presented = r.grant.Resource, r.grant.Token
		}
		b.cfg.Tell(e)
	}
}

// unmodifiedError reports that the client has the version already, and names it.
type unmodifiedError struct {
	s3err.S3Error

	etag string
	at   time.Time
}

func (e unmodifiedError) setHeaders(r request) {
	if r.http != nil {
		r.http.Response.Header.Set("ETag", quoted(e.etag))
		r.http.Response.Header.Set("Last-Modified", e.at.UTC().Format(http.TimeFormat))
	}
}

const maxList = 1000 // entries per answer

package s3

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
	"github.com/fencegate/fencegate/wire"
)

// fail turns an error of an operation into the client's error, and logs what the operator must know.
func (b *backend) fail(r request, bucket, operation string, err error) error {
	if r.expired != nil {
		err = r.expired.answer(err)
	}
	if code, ok := fence.CodeOf(err); ok {
		e := s3error.Refusal(err, code)
		r.refuse(e.Fencing)
		b.tellRefusal(r, bucket, operation, err)
		return e
	}
	unknown := errors.Is(err, fence.ErrUnknown)
	if m, ok := errors.AsType[*objects.MarkerError](err); ok && r.http != nil {
		r.http.Response.Header.Set("X-Amz-Delete-Marker", "true")
		r.http.Response.Header.Set("X-Amz-Version-Id", m.ID.String())
	}
	if e, ok := errors.AsType[unmodifiedError](err); ok {
		e.tell(r)
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

// unavailable asks the client to retry.
func (r request) unavailable(message string) s3error.Error {
	return s3error.Unavailable(r.told(message))
}

// noRight refuses a request for which the principal of the credentials has no right, or no longer has it.
func (r request) noRight() s3error.Error {
	return s3error.Error{Code: "AccessDenied", Status: http.StatusForbidden, Message: r.told(s3error.MessageNoRight)}
}

// told returns a message that claims nothing of an earlier attempt, which was not looked for.
func (r request) told(message string) string {
	if r.mayRepeat() {
		return s3error.Repeated(message)
	}
	return message
}

// mayRepeat reports whether the request may be a repetition of a write. A client that does not count its attempts may
// have sent it before.
func (r request) mayRepeat() bool {
	if r.invocation == "" || r.http == nil || r.http.IsGet() || r.http.IsHead() {
		return false
	}
	for field := range strings.SplitSeq(r.header(edge.HeaderAttempt), ";") {
		if n, counted := strings.CutPrefix(strings.TrimSpace(field), "attempt="); counted {
			return n != "1"
		}
	}
	return true
}

// tellRefusal records a request that the fence refused as an event.
func (b *backend) tellRefusal(r request, bucket, operation string, err error) {
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

func (e unmodifiedError) tell(r request) {
	if r.http != nil {
		r.http.Response.Header.Set("ETag", quoted(e.etag))
		r.http.Response.Header.Set("Last-Modified", e.at.UTC().Format(http.TimeFormat))
	}
}

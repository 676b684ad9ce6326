package s3

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// gate is our first middleware before versitygw's. It refuses requests that cost too much or that are not served, lets
// no error of versitygw out unchanged, and reports each request's result to the metrics.
type gate struct {
	cfg      config
	requests atomic.Int64 // in progress
	uploads  *slots
	router   *router
}

func newGate(cfg config, uploads *slots, r *router) *gate {
	return &gate{cfg: cfg, uploads: uploads, router: r}
}

func (g *gate) handle(c fiber.Ctx) (err error) {
	began := time.Now()
	defer func() { g.report(c, began) }()
	defer g.recoverPanic(c, &err)
	conn := edge.ConnOf(c.RequestCtx().Conn())
	conn.BodyPending.Store(false)
	var body *edge.Chunked
	defer func() { conn.BodyPending.Store(closesEarly(c, conn, body)) }()
	defer g.requests.Add(-1)
	if g.requests.Add(1) > int64(g.cfg.MaxRequests) || conn.Surplus {
		return refuse(c, s3err.GetAPIError(s3err.ErrSlowDown))
	}
	path, e := g.check(c, began)
	if e != nil {
		return refuse(c, e)
	}
	if edge.IsUpload(c, path) {
		if !g.uploads.take() {
			return refuse(c, s3err.GetAPIError(s3err.ErrSlowDown))
		}
		defer g.uploads.free()
	}
	edge.AllowBody(c, conn, g.cfg.timeouts())
	body = edge.GuardChunks(c)
	if err := c.Next(); err != nil {
		e, known := err.(s3err.S3Error) //nolint:errorlint // see codeOf
		if !known {
			g.cfg.Logger.Warn("s3: failed in versitygw", "method", c.Method(), "error", err)
			e = s3err.GetAPIError(s3err.ErrBadRequest)
		}
		return answer(c, e)
	}
	edge.HideSeal(c)
	dedupeRequestIDs(&c.Response().Header)
	if len(c.Request().URI().QueryString()) > 0 { // both documents need a query
		fixAttributes(c)
		sortTags(c)
	}
	if c.Response().StatusCode() == http.StatusServiceUnavailable {
		c.Set(fiber.HeaderRetryAfter, retryAfter)
	}
	if s, ok := c.RequestCtx().UserValue(slowAnswerKey).(*slowAnswer); ok {
		s.send(c, g.reporter(c, began))
	}
	return nil
}

// check refuses requests that must not reach versitygw. It returns the path as versitygw will see it.
func (g *gate) check(c fiber.Ctx, began time.Time) (path string, refused s3err.S3Error) {
	if e := edge.CheckFraming(&c.Request().Header); e != nil {
		return "", e
	}
	if n := edge.TooLarge(&c.Request().Header); n > 0 {
		c.Response().Header.SetConnectionClose()
		return "", s3err.GetEntityTooLargeErr(n, edge.MaxUpload)
	}
	bucket, e := edge.HostBucket(c, g.cfg.Domain)
	if e != nil {
		return "", *e
	}
	if edge.TooEarly(c, began) {
		return "", s3error.Error{Code: "AccessDenied", Status: http.StatusForbidden, Message: "Request is not yet valid."}
	}
	path, err := edge.PathIn(c, bucket)
	if err != nil {
		return "", s3error.Error{Code: "InvalidURI", Status: http.StatusBadRequest, Message: "The path has a percent sign that is not followed by two hexadecimal digits."}
	}
	return path, g.admit(c, path)
}

// closesEarly reports whether the connection ends while the client may still be sending. It closes the connection if a
// chunked body was not read to its end: versitygw leaves the rest, which would be parsed as the next request.
func closesEarly(c fiber.Ctx, conn *edge.Conn, body *edge.Chunked) bool {
	length, failed := c.Request().Header.ContentLength(), c.Response().StatusCode() >= http.StatusBadRequest
	if length == -1 && (failed || !body.Over(conn)) {
		c.Response().Header.SetConnectionClose()
	}
	return c.Response().ConnectionClose() || failed && length > maxDrained
}

// maxDrained is how much versitygw reads of an unwanted body, in bytes. It closes the connection of a longer one, but
// only after us.
const maxDrained = 256 << 10

// report reports a request, unless its answer is still to come.
func (g *gate) report(c fiber.Ctx, began time.Time) {
	if _, slow := c.RequestCtx().UserValue(slowAnswerKey).(*slowAnswer); slow {
		return
	}
	code, _ := c.Locals(localCode).(string)
	g.reporter(c, began)(c.Response().StatusCode(), code)
}

// reporter returns what reports the request, also after c is reused. The log contains nothing from the query, which may
// be presigned, or from a header.
func (g *gate) reporter(c fiber.Ctx, began time.Time) func(status int, code string) {
	operation, _ := c.Locals(localOperation).(string)
	if operation == "" {
		operation = OperationNone
	}
	remote := c.RequestCtx().RemoteAddr()
	return func(status int, code string) {
		if status < http.StatusBadRequest {
			code = ""
		}
		took := time.Since(began)
		g.cfg.Metrics.Answered(operation, status, code, took)
		if g.cfg.Logger.Enabled(context.Background(), slog.LevelDebug) {
			g.cfg.Logger.Debug("s3: answered", "operation", operation, "status", status, "code", code, "took", took, "remote", remote.String())
		}
	}
}

// admit refuses names that cannot be stored, operations that are not served, and long bodies of requests other than
// uploads.
func (g *gate) admit(c fiber.Ctx, path string) s3err.S3Error {
	if e := checkNames(c, path); e != nil {
		return e
	}
	if e := g.router.checkServed(c, path); e != nil {
		return e
	}
	if e := edge.CheckHeaders(c, path, g.cfg.RootAccessKey); e != nil {
		return e
	}
	if edge.IsUpload(c, path) {
		return nil
	}
	switch length := c.Request().Header.ContentLength(); {
	case length == -1: // chunked
		return s3err.GetAPIError(s3err.ErrMissingContentLength)
	case length > edge.MaxDocument:
		return s3err.GetEntityTooLargeErr(int64(length), edge.MaxDocument)
	}
	return nil
}

// checkNames refuses names in the path and the query that PostgreSQL cannot store: a key, a prefix, a marker.
func checkNames(c fiber.Ctx, path string) s3err.S3Error {
	_, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if e := checkKey(key); e != nil {
		return e
	}
	for name, value := range c.Request().URI().QueryArgs().All() {
		switch {
		case !objects.ValidText(string(value)):
			return s3error.InvalidText(strings.ToValidUTF8(string(name), "?"))
		case string(name) == "partNumber" && exceedsParts(string(value)):
			return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "Part number must be an integer between 1 and 10000, inclusive."}
		}
	}
	return nil
}

// exceedsParts reports whether a part number exceeds 32 bits: versitygw would take it for another number.
func exceedsParts(text string) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return errors.Is(err, strconv.ErrRange) || err == nil && n > maxPartNumber
}

const maxPartNumber = 10_000

// checkKey refuses a key that PostgreSQL cannot store.
func checkKey(key string) s3err.S3Error {
	if err := objects.CheckKey(key); err != nil {
		return s3error.Of(err, "")
	}
	return nil
}

// rescue answers 500 if a middleware around the gate panics.
func (g *gate) rescue(c fiber.Ctx) (err error) {
	defer g.recoverPanic(c, &err)
	return c.Next()
}

// recoverPanic is deferred, and answers 500 after a panic.
func (g *gate) recoverPanic(c fiber.Ctx, err *error) {
	if r := recover(); r != nil {
		g.cfg.Logger.Error("s3: panic", "method", c.Method(), "panic", fmt.Sprint(r))
		*err = answer(c, s3err.GetAPIError(s3err.ErrInternalError))
	}
}

// failed answers errors from before the gate. It does not log their text, which may repeat what the client sent.
func (g *gate) failed(c fiber.Ctx, err error) error {
	code := 0
	if e, ok := errors.AsType[*fiber.Error](err); ok {
		code = e.Code
	}
	g.cfg.Logger.Error("s3: failed before the gate", "method", c.Method(), "code", code)
	return answer(c, s3err.GetAPIError(s3err.ErrInternalError))
}

package edge

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// Limits between the network and versitygw: what a request may cost before, or besides, its operation.

const (
	// MaxDocument bounds the body of every request except uploads: versitygw buffers it. 10,000 parts with their
	// checksums fit.
	MaxDocument = 2 << 20 // bytes

	// writeBuffer holds the headers of an answer, and a body of 4 KiB.
	writeBuffer = 8 << 10 // bytes

	// readAhead is what the server reads of a body before anything checks the request; AllowBody sets the deadline for
	// the rest.
	readAhead = 8 << 10 // bytes

	// minBodyRate is the average rate that an upload needs, apart from the stall timeout.
	minBodyRate = 32 << 10 // bytes per second
)

// Timeouts bound how slow a client may be.
type Timeouts struct {
	Header time.Duration // of a request's headers, from their first byte or the start of the connection
	Upload time.Duration // the longest time for a request's body
	Stall  time.Duration // of a connection without progress
}

// Guard configures versitygw's HTTP server before it serves.
func Guard(server *fasthttp.Server, t Timeouts, log *slog.Logger) {
	server.DisablePreParseMultipartForm = true // otherwise unauthenticated forms are written to temporary files
	server.Name = "fencegate"
	server.WriteBufferSize = writeBuffer
	server.SecureErrorLogMessage = true
	server.ReadTimeout = t.Header // replaced once the headers are read
	server.IdleTimeout = t.Stall
	server.HeaderReceived = func(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
		refuseTooLarge(h)
		return fasthttp.RequestConfig{ReadTimeout: bodyTimeout(min(max(int64(h.ContentLength()), 0), readAhead), t)}
	}
	server.ErrorHandler = func(ctx *fasthttp.RequestCtx, err error) {
		e := malformed(err)
		if timedOut(err) && (ctx.IsTLS() || !ConnOf(ctx.Conn()).began) {
			_ = ctx.Conn().Close() // no request has begun: a client with an idle connection expects no answer
			return
		}
		// err repeats the headers, which may hold secrets.
		log.Debug("s3: unreadable request", "remote", ctx.RemoteAddr().String(), "code", e.Code)
		ctx.Response.Reset()
		ctx.SetStatusCode(e.Status)
		ctx.SetContentType(fiber.MIMEApplicationXML)
		ctx.SetBody(e.XMLBody("", ""))
	}
}

// malformed says why bytes are not a request.
func malformed(err error) s3error.Error {
	if _, small := errors.AsType[*fasthttp.ErrSmallBuffer](err); small {
		return s3error.Error{Code: "RequestHeaderSectionTooLarge", Status: http.StatusBadRequest, Message: "The request's headers are longer than the server takes."}
	}
	if timedOut(err) {
		return s3error.Error{Code: "RequestTimeout", Status: http.StatusBadRequest, Message: "The request was not complete in time."}
	}
	return s3error.Error{Code: "BadRequest", Status: http.StatusBadRequest, Message: "The request could not be parsed."}
}

func timedOut(err error) bool {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && timeout.Timeout()
}

// CheckFraming refuses requests whose framing a proxy may have parsed differently: it would see other requests than
// this server (request smuggling).
func CheckFraming(h *fasthttp.RequestHeader) s3err.S3Error {
	raw := h.RawHeaders()
	folded := bytes.Contains(raw, []byte("\n ")) || bytes.Contains(raw, []byte("\n\t"))
	if !folded && (h.ContentLength() != -1 || !hasLength(raw)) {
		return nil
	}
	return s3error.Error{Code: "BadRequest", Status: http.StatusBadRequest, Message: "The request has a folded header, or both Content-Length and Transfer-Encoding."}
}

func hasLength(raw []byte) bool {
	for line := range bytes.Lines(raw) {
		if name, _, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(bytes.TrimSpace(name), []byte("Content-Length")) {
			return true
		}
	}
	return false
}

// TooEarly reports whether a presigned URL begins in the future, by more than the allowed clock skew: otherwise its
// expiry could be as late as its signer likes.
func TooEarly(c fiber.Ctx, now time.Time) bool {
	at, err := time.Parse("20060102T150405Z", string(c.Request().URI().QueryArgs().Peek("X-Amz-Date")))
	return err == nil && at.After(now.Add(maxSkew))
}

// maxSkew is the clock skew that S3 allows.
const maxSkew = 15 * time.Minute

// AllowBody sets the deadline for the rest of a body, counted from now.
func AllowBody(c fiber.Ctx, conn *Conn, t Timeouts) {
	if length := c.Request().Header.ContentLength(); (length == -1 || length > readAhead) && conn.Conn != nil {
		_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout(int64(length), t))) // if it fails, the next read does
	}
}

// bodyTimeout is the time for a whole body. A negative length is unknown.
func bodyTimeout(length int64, t Timeouts) time.Duration {
	if length < 0 || length/minBodyRate > int64(t.Upload/time.Second) {
		return t.Upload
	}
	return min(t.Upload, t.Stall+time.Duration(length)*time.Second/minBodyRate)
}

// fasthttp reads 8 KiB of a body, and answers Expect: 100-continue, before any handler runs. So a body that is
// announced as longer than any upload is removed from the request once its headers are read: the server neither asks
// for it nor reads it, and the connection ends with the refusal.

// MaxUpload is the greatest length of an upload, in bytes, as in S3.
const MaxUpload = 5 << 30

// headerTooLarge holds the announced length. Only this server sets it.
const headerTooLarge = "Fencegate-Too-Large"

// refuseTooLarge records a body that is too large, and removes it from the request.
func refuseTooLarge(h *fasthttp.RequestHeader) {
	h.Del(headerTooLarge)
	length := int64(h.ContentLength())
	excess := length > MaxUpload
	if text := h.Peek("X-Amz-Decoded-Content-Length"); len(text) > 0 {
		decoded, _ := strconv.ParseInt(string(text), 10, 64)            // an invalid number is refused later
		excess = decoded > MaxUpload || length > MaxUpload+MaxUpload/16 // room for the signatures of its chunks
		length = max(length, decoded)
	}
	if !excess {
		return
	}
	h.Del("Expect")
	h.SetContentLength(0)
	h.Set(headerTooLarge, strconv.FormatInt(length, 10))
}

// TooLarge returns the length of a body that was announced as too large, or 0.
func TooLarge(h *fasthttp.RequestHeader) int64 {
	n, _ := strconv.ParseInt(string(h.Peek(headerTooLarge)), 10, 64)
	return n
}

// IsUpload reports whether versitygw streams the request's body: PutObject and
// UploadPart, on a path with a bucket and a key.
func IsUpload(c fiber.Ctx, path string) bool {
	if c.Method() != fiber.MethodPut {
		return false
	}
	if WritesProperties(c) {
		return false
	}
	_, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return key != "" && c.Get("X-Amz-Copy-Source") == ""
}

var canonicalRequest = regexp.MustCompile(`(?s)<(CanonicalRequest|CanonicalRequestBytes)>.*?</(CanonicalRequest|CanonicalRequestBytes)>`)

// HideSeal removes the signed headers from an answer that repeats them because a signature did not match: they may
// include a Fencing-Token.
func HideSeal(c fiber.Ctx) {
	res := c.Response()
	if res.StatusCode() != http.StatusForbidden || res.IsBodyStream() || len(c.Request().Header.Peek(HeaderToken)) == 0 {
		return
	}
	res.SetBody(canonicalRequest.ReplaceAll(res.Body(), nil))
}

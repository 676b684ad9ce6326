package edge

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// What stands between the network and versitygw: limits on what a request may
// cost before, or beside, the operation that it asks for.

const (
	// MaxDocument bounds the body of every request but an upload: versitygw
	// holds it in memory. 10,000 parts with their checksums fit in.
	MaxDocument = 2 << 20 // bytes

	// writeBuffer is for the headers of an answer, and a body of 4 KiB beside them.
	writeBuffer = 8 << 10 // bytes

	// readAhead is what the server reads of a body before anybody looks at the
	// request; AllowBody gives the rest its time.
	readAhead = 8 << 10 // bytes

	// minBodyRate is what an upload needs on average, beyond the stall timeout.
	minBodyRate = 32 << 10 // bytes per second
)

// Timeouts bound what a client may take its time with.
type Timeouts struct {
	Header time.Duration // of a request's headers, from their first byte or the connection's begin
	Upload time.Duration // of a request's body at the most
	Stall  time.Duration // of a connection on which nothing moves
}

// Guard prepares versitygw's HTTP server, before it serves.
func Guard(server *fasthttp.Server, t Timeouts, log *slog.Logger) {
	server.DisablePreParseMultipartForm = true // else anybody's forms are read into temporary files
	server.Name = "fencegate"
	server.WriteBufferSize = writeBuffer
	server.SecureErrorLogMessage = true
	server.ReadTimeout = t.Header // replaced when the headers are there
	server.IdleTimeout = t.Stall
	server.HeaderReceived = func(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
		refuseTooLarge(h)
		return fasthttp.RequestConfig{ReadTimeout: bodyTimeout(min(max(int64(h.ContentLength()), 0), readAhead), t)}
	}
	server.ErrorHandler = func(ctx *fasthttp.RequestCtx, err error) {
		e := malformed(err)
		if timedOut(err) && (ctx.IsTLS() || !ConnOf(ctx.Conn()).began) {
			_ = ctx.Conn().Close() // no request was begun, as far as is known: a client that keeps connections ready expects no answer
			return
		}
		log.Debug("s3: unreadable request", "remote", ctx.RemoteAddr().String(), "code", e.Code) // err repeats the headers, and so secrets
		ctx.Response.Reset()
		ctx.SetStatusCode(e.Status)
		ctx.SetContentType(fiber.MIMEApplicationXML)
		ctx.SetBody(e.XMLBody("", ""))
	}
}

// malformed says what is wrong with bytes that did not make a request.
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

// CheckFraming refuses what a server before this one may have read in another
// way: it would see other requests than this one.
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

// TooEarly reports whether a presigned URL is not good yet, by more than clocks
// may differ: else its end could lie as far ahead as its signer likes.
func TooEarly(c fiber.Ctx, now time.Time) bool {
	date := c.Request().URI().QueryArgs().Peek("X-Amz-Date")
	if len(date) == 0 {
		return false
	}
	at, err := time.Parse("20060102T150405Z", string(date))
	return err == nil && at.After(now.Add(maxSkew))
}

// maxSkew is what S3 allows between two clocks.
const maxSkew = 15 * time.Minute

// AllowBody lets a body take its time from now on, where not all of it is there.
func AllowBody(c fiber.Ctx, conn *Conn, t Timeouts) {
	if length := c.Request().Header.ContentLength(); (length == -1 || length > readAhead) && conn.Conn != nil {
		_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout(int64(length), t))) // where it fails, the next read does
	}
}

// bodyTimeout is how long a body may take altogether. A negative length is not known.
func bodyTimeout(length int64, t Timeouts) time.Duration {
	if length < 0 || length/minBodyRate > int64(t.Upload/time.Second) {
		return t.Upload
	}
	return min(t.Upload, t.Stall+time.Duration(length)*time.Second/minBodyRate)
}

// IsUpload reports whether versitygw streams the request's body: PutObject and
// UploadPart, on a path with a bucket and a key.
func IsUpload(c fiber.Ctx, path string) bool {
	if c.Method() != fiber.MethodPut {
		return false
	}
	if OfVersions(c) {
		return false
	}
	_, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return key != "" && c.Get("X-Amz-Copy-Source") == ""
}

var canonicalRequest = regexp.MustCompile(`(?s)<(CanonicalRequest|CanonicalRequestBytes)>.*?</(CanonicalRequest|CanonicalRequestBytes)>`)

// HideSeal takes the signed headers out of an answer that repeats them, because
// a signature did not fit: a Fencing-Token is among them.
func HideSeal(c fiber.Ctx) {
	res := c.Response()
	if res.StatusCode() != http.StatusForbidden || res.IsBodyStream() || len(c.Request().Header.Peek(HeaderToken)) == 0 {
		return
	}
	res.SetBody(canonicalRequest.ReplaceAll(res.Body(), nil))
}

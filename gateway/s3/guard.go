package s3

import (
	"bytes"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// What stands between the network and the front: limits on what a request may
// cost before, or beside, the operation that it asks for.

const (
	// maxDocument bounds the body of every request but an upload: the front
	// holds it in memory. 10,000 parts with their checksums fit in.
	maxDocument = 2 << 20 // bytes

	// writeBuffer is for the headers of an answer, and a body of 4 KiB beside them.
	writeBuffer = 8 << 10 // bytes

	// readAhead is what the server reads of a body before anybody looks at the
	// request; allowBody gives the rest its time.
	readAhead = 8 << 10 // bytes

	// minBodyRate is what an upload needs on average, beyond the stall timeout.
	minBodyRate = 32 << 10 // bytes per second
)

// guard prepares the front's HTTP server, before it serves.
func guard(server *fasthttp.Server, cfg config) {
	server.DisablePreParseMultipartForm = true // else anybody's forms are read into temporary files
	server.Name = "fencegate"
	server.WriteBufferSize = writeBuffer
	server.SecureErrorLogMessage = true
	server.ReadTimeout = cfg.HeaderTimeout // replaced when the headers are there
	server.IdleTimeout = cfg.StallTimeout
	server.HeaderReceived = func(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
		return fasthttp.RequestConfig{ReadTimeout: bodyTimeout(min(max(int64(h.ContentLength()), 0), readAhead), cfg)}
	}
	server.ErrorHandler = func(ctx *fasthttp.RequestCtx, err error) {
		e := malformed(err)
		if timedOut(err) && (ctx.IsTLS() || !patientOf(ctx.Conn()).heard) {
			_ = ctx.Conn().Close() // no request was begun, as far as is known: a client that keeps connections ready expects no answer
			return
		}
		cfg.Logger.Debug("s3: not a request", "remote", ctx.RemoteAddr().String(), "code", e.Code) // err repeats the headers, and so secrets
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

// checkFraming refuses what a server before this one may have read in another
// way: it would see other requests than this one.
func checkFraming(h *fasthttp.RequestHeader) s3err.S3Error {
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

// tooEarly reports whether a presigned URL is not good yet, by more than clocks
// may differ: else its end could lie as far ahead as its signer likes.
func tooEarly(c fiber.Ctx, now time.Time) bool {
	date := c.Request().URI().QueryArgs().Peek("X-Amz-Date")
	if len(date) == 0 {
		return false
	}
	at, err := time.Parse("20060102T150405Z", string(date))
	return err == nil && at.After(now.Add(maxSkew))
}

// maxSkew is what S3 allows between two clocks.
const maxSkew = 15 * time.Minute

// allowBody lets a body take its time from now on, where not all of it is there.
func allowBody(c fiber.Ctx, conn *patientConn, cfg config) {
	if length := c.Request().Header.ContentLength(); (length == -1 || length > readAhead) && conn.Conn != nil {
		_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout(int64(length), cfg))) // where it fails, the next read does
	}
}

// bodyTimeout is how long a body may take altogether. A negative length is not known.
func bodyTimeout(length int64, cfg config) time.Duration {
	if length < 0 || length/minBodyRate > int64(cfg.UploadTimeout/time.Second) {
		return cfg.UploadTimeout
	}
	return min(cfg.UploadTimeout, cfg.StallTimeout+time.Duration(length)*time.Second/minBodyRate)
}

// checkNames refuses names that PostgreSQL can't hold, in the path and in the
// query: a key, a prefix, a marker.
func checkNames(c fiber.Ctx, path string) s3err.S3Error {
	_, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if e := checkKey(key); e != nil {
		return e
	}
	for name, value := range c.Request().URI().QueryArgs().All() {
		switch {
		case !objects.ValidText(string(value)):
			return s3error.InvalidText(strings.ToValidUTF8(string(name), "?"))
		case string(name) == "partNumber" && beyondParts(string(value)):
			return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "Part number must be an integer between 1 and 10000, inclusive."}
		}
	}
	return nil
}

// beyondParts: the front would take what is over 32 bits for another number.
func beyondParts(text string) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return errors.Is(err, strconv.ErrRange) || err == nil && n > maxPartNumber
}

const maxPartNumber = 10_000

// checkKey refuses a key that PostgreSQL can't hold.
func checkKey(key string) s3err.S3Error {
	if err := objects.CheckKey(key); err != nil {
		return s3error.Of(err, "")
	}
	return nil
}

// isUpload reports whether the front streams the request's body: PutObject and
// UploadPart, on a path with a bucket and a key.
func isUpload(c fiber.Ctx, path string) bool {
	if c.Method() != fiber.MethodPut {
		return false
	}
	if ofVersions(c) {
		return false
	}
	_, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return key != "" && c.Get("X-Amz-Copy-Source") == ""
}

var canonicalRequest = regexp.MustCompile(`(?s)<(CanonicalRequest|CanonicalRequestBytes)>.*?</(CanonicalRequest|CanonicalRequestBytes)>`)

// hideSeal takes the signed headers out of an answer that repeats them, because
// a signature did not fit: a Fencing-Token is among them.
func hideSeal(c fiber.Ctx) {
	res := c.Response()
	if res.StatusCode() != http.StatusForbidden || res.IsBodyStream() || len(c.Request().Header.Peek(headerToken)) == 0 {
		return
	}
	res.SetBody(canonicalRequest.ReplaceAll(res.Body(), nil))
}

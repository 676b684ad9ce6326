package s3

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
)

// What stands between the network and the front: limits on what a request may
// cost before, or beside, the operation that it asks for.

const (
	// maxDocument bounds the body of every request but an upload: the front
	// holds it in memory. 10,000 parts with their checksums fit in.
	maxDocument = 2 << 20 // bytes

	// minBodyRate is what an upload needs on average, beyond the stall timeout.
	minBodyRate = 32 << 10 // bytes per second
)

// guard prepares the front's HTTP server, before it serves.
func guard(server *fasthttp.Server, cfg Config) {
	server.DisablePreParseMultipartForm = true // else anybody's forms are read into temporary files
	server.Name = "fencegate"
	server.ReadTimeout = cfg.HeaderTimeout // replaced when the headers are there
	server.IdleTimeout = cfg.StallTimeout
	server.HeaderReceived = func(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
		return fasthttp.RequestConfig{ReadTimeout: bodyTimeout(int64(h.ContentLength()), cfg)}
	}
	server.ErrorHandler = func(ctx *fasthttp.RequestCtx, err error) {
		cfg.Logger.Debug("s3: not a request", "remote", ctx.RemoteAddr().String(), "error", err)
		e := malformed(err)
		ctx.Response.Reset()
		ctx.SetStatusCode(e.status)
		ctx.SetContentType(fiber.MIMEApplicationXML)
		ctx.SetBody(e.XMLBody("", ""))
	}
}

// malformed says what is wrong with bytes that did not make a request.
func malformed(err error) apiError {
	if _, small := errors.AsType[*fasthttp.ErrSmallBuffer](err); small {
		return apiError{code: "RequestHeaderSectionTooLarge", status: http.StatusBadRequest, message: "The request's headers are longer than the server takes."}
	}
	if timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && timeout.Timeout() {
		return apiError{code: "RequestTimeout", status: http.StatusBadRequest, message: "The request was not complete in time."}
	}
	return apiError{code: "BadRequest", status: http.StatusBadRequest, message: "The request could not be parsed."}
}

// bodyTimeout is how long a body may take altogether. A negative length is not known.
func bodyTimeout(length int64, cfg Config) time.Duration {
	if length < 0 || length/minBodyRate > int64(cfg.UploadTimeout/time.Second) {
		return cfg.UploadTimeout
	}
	return min(cfg.UploadTimeout, cfg.StallTimeout+time.Duration(length)*time.Second/minBodyRate)
}

// gate is the first of our steps in the front: it refuses what would cost too
// much, and sees to it that no error of the front goes out raw.
func gate(cfg Config) fiber.Handler {
	return func(c fiber.Ctx) (err error) {
		defer func() {
			if r := recover(); r != nil {
				cfg.Logger.Error("s3: panic", "method", c.Method(), "panic", fmt.Sprint(r))
				err = answer(c, s3err.GetAPIError(s3err.ErrInternalError))
			}
		}()
		if e := admit(c); e != nil {
			c.Response().Header.SetConnectionClose() // the body stays unread
			return answer(c, e)
		}
		if err := c.Next(); err != nil {
			e, known := errors.AsType[s3err.S3Error](err)
			if !known {
				cfg.Logger.Warn("s3: failed in the front", "method", c.Method(), "error", err)
				e = s3err.GetAPIError(s3err.ErrBadRequest)
			}
			return answer(c, e)
		}
		hideSeal(c)
		tellPartsCount(c)
		return nil
	}
}

func answer(c fiber.Ctx, e s3err.S3Error) error {
	requestID, hostID := utils.EnsureRequestIDs(c)
	c.Response().Header.SetContentType(fiber.MIMEApplicationXML)
	return c.Status(e.StatusCode()).Send(e.XMLBody(requestID, hostID))
}

// admit refuses forms, and long bodies of anything but an upload.
func admit(c fiber.Ctx) s3err.S3Error {
	query := c.Request().URI().QueryArgs()
	if c.Method() == fiber.MethodPost && !query.Has("delete") && !query.Has("uploads") && !query.Has("uploadId") {
		kind, _, _ := mime.ParseMediaType(c.Get("Content-Type"))
		if strings.HasPrefix(kind, "multipart/") {
			return s3err.GetNotImplementedErr("POST of a form", "")
		}
	}
	if e := checkNames(c); e != nil {
		return e
	}
	if isUpload(c) {
		return nil
	}
	switch length := c.Request().Header.ContentLength(); {
	case length == -1: // chunked
		return s3err.GetAPIError(s3err.ErrMissingContentLength)
	case length > maxDocument:
		return s3err.GetEntityTooLargeErr(int64(length), maxDocument)
	}
	return nil
}

// checkNames refuses names that PostgreSQL can't hold, in the path and in the
// query: a key, a prefix, a marker.
func checkNames(c fiber.Ctx) s3err.S3Error {
	if path, err := url.PathUnescape(c.Path()); err == nil { // else the front says what is wrong
		_, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if e := checkKey(key); e != nil {
			return e
		}
	}
	for name, value := range c.Request().URI().QueryArgs().All() {
		if !validText(string(value)) {
			return invalidText(strings.ToValidUTF8(string(name), "?"))
		}
	}
	return nil
}

// maxKey is what S3 allows, in bytes of UTF-8.
const maxKey = 1024

func checkKey(key string) s3err.S3Error {
	switch {
	case len(key) > maxKey:
		return s3err.GetKeyTooLongErr(int64(len(key)), maxKey)
	case !validText(key):
		return invalidText("key")
	}
	return nil
}

// validText reports whether PostgreSQL can store the text.
func validText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func invalidText(what string) apiError {
	return apiError{code: "InvalidArgument", status: http.StatusBadRequest, message: "The " + what + " is not UTF-8 text without NUL."}
}

// isUpload reports whether the front streams the request's body: PutObject and
// UploadPart, on a path with a bucket and a key.
func isUpload(c fiber.Ctx) bool {
	query := c.Request().URI().QueryArgs()
	if slices.ContainsFunc([]string{"tagging", "retention", "legal-hold", "acl"}, query.Has) {
		return false
	}
	_, key, _ := strings.Cut(strings.TrimPrefix(c.Path(), "/"), "/")
	return c.Method() == fiber.MethodPut && key != "" && c.Get("X-Amz-Copy-Source") == ""
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

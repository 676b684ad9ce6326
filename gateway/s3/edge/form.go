package edge

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// Browsers upload with a form, a POST of multipart/form-data to a bucket. Its fields carry a signed policy, and what
// other uploads have in headers. versitygw buffers the fields before it authenticates them, so a form is read at once
// and bounded like a document.

// maxFormParts bounds the fields of a form. S3 allows 20 kB of them, which is about as many; versitygw's parsing takes
// quadratic time.
const maxFormParts = 256

// MaxForms bounds the forms in progress: each is held in memory, up to MaxDocument, before its signature is verified.
const MaxForms = 32

// IsForm reports whether the request is a form.
func IsForm(c fiber.Ctx) bool {
	if c.Method() != fiber.MethodPost {
		return false
	}
	query := c.Request().URI().QueryArgs()
	kind, _, _ := mime.ParseMediaType(c.Get("Content-Type"))
	return !query.Has("delete") && !query.Has("uploads") && !query.Has("uploadId") && strings.HasPrefix(kind, "multipart/")
}

// AdmitForm refuses options that need a signed header, which a form does not have. It ignores options that only help.
func AdmitForm(c fiber.Ctx, path string) s3err.S3Error {
	if _, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); key != "" {
		return s3err.GetNotImplementedErr("POST of a form", "")
	}
	h := &c.Request().Header
	if len(h.Peek(HeaderToken)) > 0 {
		return InvalidToken("is not among what a form's policy signs; send the form with a lease's credentials")
	}
	if len(h.Peek(HeaderStage)) > 0 {
		return s3err.GetNotImplementedErr(HeaderStage, "")
	}
	h.Del(HeaderInvocation)
	for name := range h.All() {
		if header := string(name); IgnoredInForm(header) || strings.HasPrefix(header, "X-Amz-Checksum-") {
			return s3err.GetNotImplementedErr(header, "")
		}
	}
	return nil
}

// IgnoredInForm reports whether a header, or a field of that name, is a condition or a digest that versitygw ignores in
// a form.
func IgnoredInForm(header string) bool { return ofWrites[header] || header == "Content-Md5" }

// TakeForm reads a form and completes it for versitygw, which requires a line break after the last boundary; some
// clients do not send it.
func TakeForm(c fiber.Ctx) s3err.S3Error {
	boundary := BoundaryOf(c.Get("Content-Type"))
	if boundary == "" {
		return nil // versitygw refuses it
	}
	req, lineBreak := c.Request(), "\r\n"
	length := max(req.Header.ContentLength(), 0) // the gate bounds it
	form := make([]byte, length, length+len(lineBreak))
	if stream := req.BodyStream(); stream != nil {
		if _, err := io.ReadFull(stream, form); err != nil {
			return s3err.GetAPIError(s3err.ErrMalformedPOSTRequest)
		}
	} else if copy(form, req.Body()) != length {
		return s3err.GetAPIError(s3err.ErrMalformedPOSTRequest)
	}
	if !bytes.HasSuffix(form, []byte(lineBreak)) {
		form = append(form, lineBreak...)
	}
	if !bytes.Contains(form, []byte("\r\n--"+boundary+"--\r\n")) {
		return s3err.GetAPIError(s3err.ErrMalformedPOSTRequest)
	}
	parts, more := 0, true
	for rest := form; more; parts++ {
		if parts > maxFormParts {
			return s3error.Error{Code: "MaxPostPreDataLengthExceededError", Status: http.StatusBadRequest, Message: "Your POST request fields preceding the upload file were too large."}
		}
		_, rest, more = CutPart(rest, boundary)
	}
	req.SetBodyRaw(form) // ends the stream, which uses the length that changes here
	req.Header.SetContentLength(len(form))
	return nil
}

func BoundaryOf(contentType string) string {
	_, params, _ := mime.ParseMediaType(contentType)
	return strings.TrimSpace(params["boundary"])
}

// CutPart cuts off the part before a boundary. A longer line that begins like the boundary does not count.
func CutPart(data []byte, boundary string) (part, rest []byte, found bool) {
	line := []byte("\r\n--" + boundary)
	for at := 0; ; at += len(line) {
		next := bytes.Index(data[at:], line)
		if next < 0 {
			return data, nil, false
		}
		at += next
		rest = data[at+len(line):]
		if end := bytes.TrimLeft(rest, " \t"); len(end) == 0 || bytes.HasPrefix(end, []byte("\r\n")) || bytes.HasPrefix(end, []byte("--")) {
			return data[:at], rest, true
		}
	}
}

package edge

import (
	"bytes"
	"mime"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// A form, POST of multipart/form-data to a bucket, is how browsers upload: its
// fields carry a policy that somebody signed, and what other uploads have in
// headers. versitygw holds the fields in memory before it knows who sent them, so
// a form is bounded as every document is, and like one it is read at once.

// maxFormParts is how many fields a form may have. S3 allows 20 kB of them, which
// is about as many; versitygw needs time by the square of it.
const maxFormParts = 256

// IsForm reports whether the request is a form.
func IsForm(c fiber.Ctx) bool {
	if c.Method() != fiber.MethodPost {
		return false
	}
	query := c.Request().URI().QueryArgs()
	kind, _, _ := mime.ParseMediaType(c.Get("Content-Type"))
	return !query.Has("delete") && !query.Has("uploads") && !query.Has("uploadId") && strings.HasPrefix(kind, "multipart/")
}

// AdmitForm refuses options that need a signed header: a form has none.
// Options that merely help are ignored.
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

// IgnoredInForm reports whether a header, or a field of that name, is a condition or
// a digest that versitygw takes of no form.
func IgnoredInForm(header string) bool { return ofWrites[header] || header == "Content-Md5" }

// TakeForm reads a form, and has versitygw find it complete: with a line break behind
// the last boundary, which it insists on and some clients don't send.
func TakeForm(c fiber.Ctx) s3err.S3Error {
	boundary := BoundaryOf(c.Get("Content-Type"))
	if boundary == "" {
		return nil // versitygw refuses it
	}
	var form bytes.Buffer
	req := c.Request()
	if stream := req.BodyStream(); stream != nil {
		_, _ = form.ReadFrom(stream) // a failure shows in the length
	} else {
		form.Write(req.Body())
	}
	if form.Len() != req.Header.ContentLength() {
		return s3err.GetAPIError(s3err.ErrMalformedPOSTRequest)
	}
	if !bytes.HasSuffix(form.Bytes(), []byte("\r\n")) {
		form.WriteString("\r\n")
	}
	if !bytes.Contains(form.Bytes(), []byte("\r\n--"+boundary+"--\r\n")) {
		return s3err.GetAPIError(s3err.ErrMalformedPOSTRequest)
	}
	parts, more := 0, true
	for rest := form.Bytes(); more; parts++ {
		if parts > maxFormParts {
			return s3error.Error{Code: "MaxPostPreDataLengthExceededError", Status: http.StatusBadRequest, Message: "Your POST request fields preceding the upload file were too large."}
		}
		_, rest, more = CutPart(rest, boundary)
	}
	req.SetBodyRaw(form.Bytes()) // which ends the stream: it counts by the length that changes here
	req.Header.SetContentLength(form.Len())
	return nil
}

func BoundaryOf(contentType string) string {
	_, params, _ := mime.ParseMediaType(contentType)
	return strings.TrimSpace(params["boundary"])
}

// CutPart cuts what is before a boundary off. One that goes on is none.
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

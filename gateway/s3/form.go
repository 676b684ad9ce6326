package s3

import (
	"bytes"
	"io"
	"mime"
	"net/textproto"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
)

// A form, POST of multipart/form-data to a bucket, is how browsers upload: its
// fields carry a policy that somebody signed, and what other uploads have in
// headers. The front holds the fields in memory before it knows who sent them, so
// a form is bounded as every document is.

// isForm reports whether the request is a form.
func isForm(c fiber.Ctx) bool {
	query := c.Request().URI().QueryArgs()
	kind, _, _ := mime.ParseMediaType(c.Get("Content-Type"))
	return c.Method() == fiber.MethodPost && !query.Has("delete") && !query.Has("uploads") && !query.Has("uploadId") && strings.HasPrefix(kind, "multipart/")
}

// admitForm refuses what only a signed header can ask for: none of a form's is.
// Of those that merely help, nothing is taken.
func admitForm(c fiber.Ctx, path string) s3err.S3Error {
	if _, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); key != "" {
		return s3err.GetNotImplementedErr("POST of a form", "")
	}
	h := &c.Request().Header
	if len(h.Peek(headerToken)) > 0 {
		return invalidToken("is not among what a form's policy signs; send the form with a lease's credentials")
	}
	if len(h.Peek(headerStage)) > 0 {
		return s3err.GetNotImplementedErr(headerStage, "")
	}
	h.Del(headerInvocation)
	return nil
}

// checkForm refuses fields that would be ignored; nil where there is no form.
func (r request) checkForm(key string) error {
	if r.http == nil {
		return nil
	}
	form, isForm := r.http.UserValue(string(utils.ContextKeyObjectPostResult)).(middlewares.PostObjectResult)
	if !isForm {
		return nil
	}
	if e := checkKey(key); e != nil {
		return e
	}
	if strings.Contains(key, "${filename}") { // the front puts no name there
		return s3err.GetNotImplementedErr("${filename}", "")
	}
	for name, value := range form.Fields {
		header := textproto.CanonicalMIMEHeaderKey(name)
		if header == "Acl" || header == "X-Amz-Acl" {
			header = "X-Amz-Acl"
		}
		if asksForMore(header, value, true) {
			return s3err.GetNotImplementedErr(strings.ToValidUTF8(name, "?"), "")
		}
	}
	return nil
}

// cutForm leaves the file of a form as the body: the front takes the fields behind
// it, such as a browser's button, for a part of it. A form is a document, so it is
// held in memory.
func (r request) cutForm(in *s3response.PutObjectInput) error {
	if r.http == nil || r.http.UserValue(string(utils.ContextKeyObjectPostResult)) == nil {
		return nil
	}
	_, params, _ := mime.ParseMediaType(r.header("Content-Type"))
	data, err := io.ReadAll(in.Body)
	if err != nil {
		return s3err.GetAPIError(s3err.ErrMalformedPOSTRequest)
	}
	data, _, _ = bytes.Cut(data, []byte("\r\n--"+params["boundary"]))
	size := int64(len(data))
	in.Body, in.ContentLength = bytes.NewReader(data), &size
	return nil
}

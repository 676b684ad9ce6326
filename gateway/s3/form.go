package s3

import (
	"bytes"
	"io"
	"mime"
	"net/textproto"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
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

// form is what the front has read of a form before its file.
func (r request) form() (form middlewares.PostObjectResult, isForm bool) {
	if r.http != nil {
		form, isForm = r.http.UserValue(string(utils.ContextKeyObjectPostResult)).(middlewares.PostObjectResult)
	}
	return form, isForm
}

// checkForm refuses fields that would be ignored; nil where there is no form.
func (r request) checkForm(key string) error {
	form, isForm := r.form()
	if !isForm {
		return nil
	}
	if e := checkKey(key); e != nil {
		return e
	}
	for name, value := range form.Fields {
		if strings.Contains(value, "${filename}") { // the front puts no name there
			return s3err.GetNotImplementedErr("${filename}", "")
		}
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
// it, such as a browser's button, for a part of it, and for a part of what the
// policy says of its size. A form is a document, so it is held in memory.
func (r request) cutForm(in *s3response.PutObjectInput) error {
	form, isForm := r.form()
	if !isForm {
		return nil
	}
	_, params, _ := mime.ParseMediaType(r.header("Content-Type"))
	data, err := io.ReadAll(in.Body)
	if err != nil {
		return s3err.GetAPIError(s3err.ErrMalformedPOSTRequest)
	}
	data, _, more := bytes.Cut(data, []byte("\r\n--"+strings.TrimSpace(params["boundary"])))
	size := int64(len(data))
	in.Body, in.ContentLength = bytes.NewReader(data), &size
	if !more {
		return nil
	}
	policy, err := auth.ParsePOSTPolicyBase64(form.Fields["policy"])
	if err != nil {
		return err
	}
	return policy.Evaluate(auth.PostPolicyEvalInput{Bucket: *in.Bucket, Key: *in.Key, ContentLength: size, Fields: form.Fields})
}

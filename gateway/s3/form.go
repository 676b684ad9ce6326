package s3

import (
	"bytes"
	"io"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// form returns the fields of a form that versitygw has read before the file.
func (r request) form() (form middlewares.PostObjectResult, isForm bool) {
	if r.http != nil {
		form, isForm = r.http.UserValue(string(utils.ContextKeyObjectPostResult)).(middlewares.PostObjectResult)
	}
	return form, isForm
}

// checkForm refuses fields that would be ignored. It returns nil if there is no form.
func (r request) checkForm(key string) error {
	form, isForm := r.form()
	if !isForm {
		return nil
	}
	if e := checkKey(key); e != nil {
		return e
	}
	if err := checkDate(form.Fields, time.Now()); err != nil {
		return err
	}
	for name, value := range form.Fields {
		if strings.Contains(value, "${filename}") { // versitygw does not substitute it
			return s3err.GetNotImplementedErr("${filename}", "")
		}
		header := textproto.CanonicalMIMEHeaderKey(name)
		if header == "Acl" || header == "X-Amz-Acl" {
			header = "X-Amz-Acl"
		}
		if edge.AsksForMore(header, value, true) || edge.IgnoredInForm(header) || header == edge.HeaderToken || header == edge.HeaderStage {
			return s3err.GetNotImplementedErr(strings.ToValidUTF8(name, "?"), "")
		}
	}
	return nil
}

// checkDate refuses a date from which the form would be valid for longer than an hour from now, apart from the allowed
// clock skew, and one that is not of the day for which the form is signed.
func checkDate(fields map[string]string, now time.Time) error {
	date := fields["x-amz-date"]
	if edge.InFuture(date, now) {
		return s3error.Error{Code: "AccessDenied", Status: http.StatusForbidden, Message: "The form is not yet valid: its x-amz-date is in the future."}
	}
	creds, err := utils.ParseCredentials(fields["x-amz-credential"], s3err.PostAuth)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(date, creds.Date+"T") {
		return s3error.Error{Code: "AccessDenied", Status: http.StatusForbidden, Message: "The form's x-amz-date is of another day than its x-amz-credential."}
	}
	return nil
}

// cutForm leaves only the file of a form as the body: versitygw takes what follows the file, such as a browser's submit
// button, for a part of it, and counts it in the policy's size limit.
func (r request) cutForm(in *s3response.PutObjectInput) error {
	form, isForm := r.form()
	if !isForm {
		return nil
	}
	data, err := io.ReadAll(in.Body)
	if err != nil {
		return s3err.GetAPIError(s3err.ErrMalformedPOSTRequest)
	}
	data, _, _ = edge.CutPart(data, edge.BoundaryOf(r.header("Content-Type")))
	size := int64(len(data))
	in.Body, in.ContentLength = bytes.NewReader(data), &size
	if size == form.ContentLength {
		return nil
	}
	policy, err := auth.ParsePOSTPolicyBase64(form.Fields["policy"])
	if err != nil {
		return err
	}
	return policy.Evaluate(auth.PostPolicyEvalInput{Bucket: *in.Bucket, Key: *in.Key, ContentLength: size, Fields: form.Fields})
}

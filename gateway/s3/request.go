package s3

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/auth"
	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/metrics"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// request is what the backend needs of a request besides its arguments.
type request struct {
	http       *fasthttp.RequestCtx
	root       bool
	grant      objects.Proof
	leased     bool   // a lease's credentials signed the request
	expired    *lapse // those have expired: only what was done before is answered
	terms      credentials.Terms
	invocation string // "" if there is none
}

const maxInvocation = 128 // bytes of its id

// target is a request and what it names; key is "" for a bucket.
type target struct {
	request

	bucket, key string
}

func accountOf(rc *fasthttp.RequestCtx) auth.Account {
	account, _ := rc.UserValue(string(utils.ContextKeyAccount)).(auth.Account)
	return account
}

// id returns the answer's x-amz-request-id; "" if there is no HTTP request.
func (r request) id() string {
	if r.http == nil {
		return ""
	}
	id, _ := r.http.UserValue(string(utils.ContextKeyRequestID)).(string)
	return strings.Clone(id)
}

func (r request) header(name string) string { return string(r.http.Request.Header.Peek(name)) }

func (r request) query(name string) string { return string(r.http.QueryArgs().Peek(name)) }

// reads reports whether the request is a read by its method.
func (r request) reads() bool { return r.http.IsGet() || r.http.IsHead() }

// signed reports whether the request's signature covers the header. versitygw enforces that for X-Amz-* and Host; other
// headers may have been added on the way. The list is the one that versitygw itself checked: a request with any
// parameter of a presigned URL counts as presigned, even with an Authorization header.
func (r request) signed(header string) bool {
	list := r.query("X-Amz-SignedHeaders")
	if !r.presigned() {
		list = signedHeaders(r.header("Authorization"))
	}
	for name := range strings.SplitSeq(list, ";") {
		if strings.EqualFold(strings.TrimSpace(name), header) {
			return true
		}
	}
	return false
}

func (r request) presigned() bool {
	for _, name := range []string{
		"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Signature", "X-Amz-SignedHeaders", "X-Amz-Expires", "X-Amz-Security-Token",
		"Expires", "AWSAccessKeyId", "Signature",
	} {
		if r.query(name) != "" {
			return true
		}
	}
	return false
}

// signedHeaders returns the list in an Authorization header, which has exactly the form "AWS4-HMAC-SHA256 Credential=…,
// SignedHeaders=…, Signature=…".
func signedHeaders(authorization string) string {
	rest, isV4 := strings.CutPrefix(authorization, "AWS4-HMAC-SHA256 ")
	parts := strings.Split(rest, ",")
	if !isV4 || len(parts) != 3 {
		return ""
	}
	list, found := strings.CutPrefix(strings.TrimSpace(parts[1]), "SignedHeaders=")
	if !found || !strings.HasPrefix(strings.TrimSpace(parts[0]), "Credential=") || !strings.HasPrefix(strings.TrimSpace(parts[2]), "Signature=") {
		return ""
	}
	return list
}

// change returns the change that the request makes, with its proof.
func (r request) change(bucket, key string, cond objects.Conditions) objects.Change {
	return objects.Change{Bucket: bucket, Key: key, Proof: r.grant, Invocation: r.invocation, Conditions: cond}
}

// stages reports whether the request asks for its upload to be staged.
func (r request) stages() bool { return r.http != nil && r.header(edge.HeaderStage) != "" }

// checkStage refuses the header if it would be ignored, or could have been added or removed on the way.
func (r request) checkStage() error {
	query := r.http.QueryArgs()
	upload := r.http.IsPut() && !query.Has("tagging") || r.http.IsPost() && (query.Has("uploads") || query.Has("uploadId"))
	switch {
	case !upload:
		return s3err.GetNotImplementedErr(edge.HeaderStage, "")
	case r.header(edge.HeaderStage) != "true":
		return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "The header " + edge.HeaderStage + " is not true. Nothing was changed."}
	case !r.signed(edge.HeaderStage):
		return s3error.Error{Code: "InvalidRequest", Status: http.StatusForbidden, Message: "The header " + edge.HeaderStage + " is not among the signed headers. Nothing was changed."}
	}
	return nil
}

// nameStage names the stage in the answer.
func (r request) nameStage(v objects.Stored) {
	r.http.Response.Header.Set(edge.HeaderStage, blob.ID(v.ID).String())
}

// encoding returns the encoding-type, which versitygw does not pass on.
func (r request) encoding() (types.EncodingType, error) {
	switch t := r.query("encoding-type"); t {
	case "":
		return "", nil
	case "url":
		return types.EncodingTypeUrl, nil
	}
	return "", s3error.Error{Code: "InvalidArgument", Status: 400, Message: "Invalid Encoding Method specified in Request"}
}

// expects reads the conditions of a deletion that versitygw drops: an invalid size, a date in another form or in the
// future. With an invalid condition nothing is deleted.
func (r request) expects(in *s3.DeleteObjectInput) error {
	if r.header(edge.HeaderExpectedSize) != "" && in.IfMatchSize == nil {
		return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "The header " + edge.HeaderExpectedSize + " is not a size. Nothing was deleted."}
	}
	if text := r.header(edge.HeaderExpectedTime); text != "" {
		at, err := dateOf(text)
		if err != nil {
			return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "The header " + edge.HeaderExpectedTime + " is not a date. Nothing was deleted."}
		}
		in.IfMatchLastModifiedTime = &at
	}
	return nil
}

func dateOf(text string) (time.Time, error) {
	at, err := http.ParseTime(text)
	if err != nil {
		at, err = time.Parse(time.RFC3339, text)
	}
	return at, err
}

// condition returns a condition on the target, which versitygw does not pass on.
func (r request) condition(header string) *string {
	return optional(strings.Trim(r.header(header), `"`))
}

// rangeHolds evaluates If-Range: without the version's ETag or date there, Range is ignored and the whole version is
// the answer. A weak ETag never matches.
func (r request) rangeHolds(v objects.Stored) bool {
	if r.http == nil {
		return true
	}
	held := r.header("If-Range")
	return held == "" || held == quoted(v.ETag) || held == v.CreatedAt.UTC().Format(http.TimeFormat)
}

// parseSource parses a copy's source. versitygw decodes it before it looks for a version id, so it can take part of a
// key for one.
func parseSource(source string) (bucket, key, versionID string, err error) {
	if bucket, _, _, err = front.ParseCopySource(source); err != nil {
		return "", "", "", err
	}
	path, id, _ := strings.Cut(source, "?versionId=")
	path, _ = url.QueryUnescape(path) // the whole source could be decoded above
	_, key, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
	id, _ = url.QueryUnescape(id)
	return bucket, key, id, nil
}

// Response headers of a refusal by the fence.
const (
	headerCode     = "Fencing-Code"
	headerRecorded = "Fencing-Recorded"
	headerResource = "Fencing-Resource" // percent-encoded
)

// setFencingHeaders sets the response headers of a refusal by the fence.
func (r request) setFencingHeaders(facts *s3error.Fencing) {
	if r.http == nil || facts == nil {
		return
	}
	h := &r.http.Response.Header
	h.Set(headerCode, facts.Code)
	if facts.Recorded > 0 {
		h.Set(headerRecorded, facts.Recorded.String())
	}
	if facts.Resource != "" {
		h.Set(headerResource, fence.EscapeResource(facts.Resource))
	}
}

// unavailable asks the client to retry.
func (r request) unavailable(message string) s3error.Error {
	return s3error.Unavailable(r.message(message))
}

// noRight refuses a request for which the principal of the credentials has no right, or no longer has it.
func (r request) noRight() s3error.Error {
	return s3error.Error{Code: "AccessDenied", Status: http.StatusForbidden, Message: r.message(s3error.MessageNoRight)}
}

// message returns the text for this attempt: of a possible repetition it claims nothing of earlier attempts, which were
// not looked for.
func (r request) message(text string) string {
	if r.mayRepeat() {
		return s3error.Repeated(text)
	}
	return text
}

// mayRepeat reports whether the request may be a repetition of a write. A client that does not count its attempts may
// have sent it before.
func (r request) mayRepeat() bool {
	if r.invocation == "" || r.http == nil || r.reads() {
		return false
	}
	for field := range strings.SplitSeq(r.header(edge.HeaderAttempt), ";") {
		if n, counted := strings.CutPrefix(strings.TrimSpace(field), "attempt="); counted {
			return n != "1"
		}
	}
	return true
}

// lapse is the end of the credentials that signed a request.
type lapse struct {
	undecided error // not nil: an earlier attempt may still take effect
}

// repeatable are the operations that answer a request with the result of its earlier attempt.
var repeatable = map[string]bool{
	metrics.ActionPutObject: true, metrics.ActionCopyObject: true, metrics.ActionDeleteObject: true, metrics.ActionDeleteObjects: true,
	metrics.ActionPutObjectTagging: true, metrics.ActionDeleteObjectTagging: true,
	metrics.ActionCreateMultipartUpload: true, metrics.ActionUploadPart: true, metrics.ActionUploadPartCopy: true,
	metrics.ActionCompleteMultipartUpload: true, metrics.ActionAbortMultipartUpload: true,
}

// lapsed reports whether expired credentials signed a request that cannot be the repetition of a write.
func (r request) lapsed(action string) bool { return r.expired != nil && !repeatable[action] }

// answer returns what a client with expired credentials learns of an error: that its grant is superseded, or that its
// request could not be judged. Other errors would tell what is stored.
func (l *lapse) answer(err error) error {
	status := 0
	if code, ok := fence.CodeOf(err); ok {
		status = code.S3Status
	} else if e := s3error.Of(err, ""); e != nil {
		status = e.StatusCode()
	}
	switch {
	case status == 0 || status >= http.StatusInternalServerError || errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrUnknown):
		return err
	case l.undecided != nil:
		return l.undecided
	}
	return errExpired
}

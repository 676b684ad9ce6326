package s3

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"html"
	"net/http"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/fence"
)

// apiError is an S3 error of our own. The XML holds the facts of a refusal by
// the fence beside the message, and the response headers repeat them.
type apiError struct {
	code, message string
	status        int
	fencing       *fencing
}

// fencing are the facts of a refusal.
type fencing struct {
	Code      string      `xml:"FencingCode"` // the SQLSTATE
	Resource  string      `xml:"FencingResource,omitempty"`
	Needed    string      `xml:"FencingResourceNeeded,omitempty"`
	Presented fence.Token `xml:"FencingTokenPresented,omitempty"`
	Recorded  fence.Token `xml:"FencingTokenRecorded,omitempty"`
	Hint      string      `xml:"Hint,omitempty"`
}

// Response headers of a refusal by the fence.
const (
	headerCode     = "Fencing-Code"
	headerRecorded = "Fencing-Recorded"
	headerResource = "Fencing-Resource" // percent-encoded
)

var _ s3err.S3Error = apiError{}

func (e apiError) Error() string { return e.code + ": " + e.message }

// StatusCode implements [s3err.S3Error].
func (e apiError) StatusCode() int { return e.status }

// BaseError implements [s3err.S3Error].
func (e apiError) BaseError() s3err.APIError {
	return s3err.APIError{Code: e.code, Description: e.message, HTTPStatusCode: e.status}
}

// XMLBody implements [s3err.S3Error].
func (e apiError) XMLBody(requestID, hostID string) []byte {
	body, err := xml.Marshal(struct {
		XMLName   xml.Name `xml:"Error"`
		Code      string
		Message   string
		RequestID string `xml:"RequestId,omitempty"`
		HostID    string `xml:"HostId,omitempty"`
		*fencing
	}{Code: e.code, Message: e.message, RequestID: requestID, HostID: hostID, fencing: e.fencing})
	if err != nil {
		return e.BaseError().XMLBody(requestID, hostID)
	}
	return append([]byte(xml.Header), body...)
}

// HTMLBody implements [s3err.S3Error].
func (e apiError) HTMLBody(requestID, _ string) []byte {
	return []byte("<html><body><h1>" + html.EscapeString(e.code) + "</h1><p>" + html.EscapeString(e.message) +
		"</p><p>RequestId: " + html.EscapeString(requestID) + "</p></body></html>\n")
}

// refusal makes the S3 error of a refusal by the fence.
func refusal(err error, code fence.Code) apiError {
	facts := &fencing{Code: code.SQLState, Hint: code.Hint}
	if e, ok := errors.AsType[*fence.StaleError](err); ok {
		facts.Resource, facts.Presented, facts.Recorded = e.Resource, e.Presented, e.Recorded
	}
	if e, ok := errors.AsType[*fence.NeverIssuedError](err); ok {
		facts.Resource, facts.Presented, facts.Recorded = e.Resource, e.Presented, e.Recorded
	}
	if e, ok := errors.AsType[*fence.WrongResourceError](err); ok {
		facts.Resource, facts.Needed = e.Resource, e.Needed
	}
	if e, ok := errors.AsType[*fence.NoGrantError](err); ok {
		facts.Needed = e.Needed
	}
	return apiError{code: code.S3Code, message: err.Error() + ". " + code.Hint, status: code.S3Status, fencing: facts}
}

// SQLSTATEs of the schema objects; the migration says what they mean.
const (
	stateNoBucket       = "ZO001"
	statePrecondition   = "ZO002"
	stateNoKey          = "ZO003"
	stateGivenUp        = "ZO004"
	stateBucketNotEmpty = "ZO005"
	stateOtherRequest   = "ZO006"
	stateRuleInUse      = "ZO007"
	stateNoUpload       = "ZO008"
	stateNoVersion      = "ZO009"

	stateNotText      = "22021" // character_not_in_repertoire
	stateUntranslated = "22P05" // untranslatable_character, a NUL in JSON
)

// ErrRuleInUse: the bucket holds objects that were written under another rule.
var ErrRuleInUse = errors.New("the bucket's rule can't change while it holds objects")

// ErrNoBucket: there is no such bucket.
var ErrNoBucket = errors.New("no such bucket")

// translate turns PostgreSQL's refusals into errors that say what they mean;
// other errors stay as they are.
func translate(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch pgErr.Code {
	case statePrecondition:
		return s3err.GetPreconditionFailedErr(s3err.Condition(pgErr.Detail))
	case stateNoKey:
		return s3err.GetAPIError(s3err.ErrNoSuchKey)
	case stateBucketNotEmpty:
		return s3err.GetAPIError(s3err.ErrBucketNotEmpty)
	case stateNoBucket:
		return errNoBucket
	case stateGivenUp:
		return errGivenUp
	case stateOtherRequest:
		return apiError{
			code: "InvalidRequest", status: http.StatusBadRequest,
			message: "This amz-sdk-invocation-id was used for another request on the same key. Nothing was changed.",
		}
	case stateNoVersion:
		return s3err.GetAPIError(s3err.ErrNoSuchVersion)
	case stateNoUpload:
		return s3err.GetAPIError(s3err.ErrNoSuchUpload)
	case stateNotText, stateUntranslated:
		return invalidText("request")
	case stateRuleInUse:
		return ErrRuleInUse
	}
	return fenceError(pgErr)
}

// fenceError reads the facts of a refusal by the fence from an error's DETAIL.
func fenceError(pgErr *pgconn.PgError) error {
	var d struct {
		Resource, Needed    string
		Presented, Recorded json.Number
	}
	_ = json.Unmarshal([]byte(pgErr.Detail), &d) // facts that are missing stay empty
	token := func(n json.Number) fence.Token { i, _ := n.Int64(); return fence.Token(i) }
	switch pgErr.Code {
	case "ZF001":
		return &fence.StaleError{Resource: d.Resource, Presented: token(d.Presented), Recorded: token(d.Recorded)}
	case "ZF002":
		return &fence.NoGrantError{Needed: d.Needed}
	case "ZF003":
		return &fence.NeverIssuedError{Resource: d.Resource, Presented: token(d.Presented), Recorded: token(d.Recorded)}
	case "ZF004":
		return &fence.WrongResourceError{Resource: d.Resource, Needed: d.Needed}
	case "ZF005":
		return &fence.UndrainedError{Resource: d.Resource, Token: token(d.Recorded), Detail: pgErr.Message}
	}
	return pgErr
}

var (
	errNoBucket = ErrNoBucket
	errNotThere = s3err.GetAPIError(s3err.ErrNotImplemented)
	errGivenUp  = apiError{
		code: "RequestTimeout", status: http.StatusBadRequest,
		message: "The upload took so long that it was given up. Nothing was stored. Upload again.",
	}
)

func unavailable(message string) apiError {
	return apiError{code: "ServiceUnavailable", status: http.StatusServiceUnavailable, message: message}
}

// Messages of 503: SDKs try again by themselves.
const (
	messageDatabaseAway = "PostgreSQL, which holds the fences and the names of objects, can't be reached. Nothing was changed. Try again."
	messageUnknown      = "PostgreSQL was lost while the request was committed, so its outcome is unknown. Try the same request again: it is applied at most once."
	messageNotTried     = "PostgreSQL was lost before this key's turn came. Nothing was changed. Try again."
	messageStoreFailed  = "The blob store failed. Nothing was changed. Try again."
)

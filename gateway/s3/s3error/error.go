package s3error

import (
	"encoding/xml"
	"errors"
	"html"
	"net/http"
	"strings"

	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/fence"
)

// Error is an S3 error of this gateway. The XML contains the facts of a refusal by the fence besides the message, and
// the response headers repeat them.
type Error struct {
	Code, Message string
	Status        int
	Fencing       *Fencing
}

// Fencing are the facts of a refusal.
type Fencing struct {
	Code      string      `xml:"FencingCode"` // the SQLSTATE
	Resource  string      `xml:"FencingResource,omitempty"`
	Needed    string      `xml:"FencingResourceNeeded,omitempty"`
	Presented fence.Token `xml:"FencingTokenPresented,omitempty"`
	Recorded  fence.Token `xml:"FencingTokenRecorded,omitempty"`
	Hint      string      `xml:"Hint,omitempty"`
}

var _ s3err.S3Error = Error{}

func (e Error) Error() string { return e.Code + ": " + e.Message }

// StatusCode implements [s3err.S3Error].
func (e Error) StatusCode() int { return e.Status }

// BaseError implements [s3err.S3Error].
func (e Error) BaseError() s3err.APIError {
	return s3err.APIError{Code: e.Code, Description: e.Message, HTTPStatusCode: e.Status}
}

// XMLBody implements [s3err.S3Error].
func (e Error) XMLBody(requestID, hostID string) []byte {
	body, err := xml.Marshal(struct {
		XMLName   xml.Name `xml:"Error"`
		Code      string
		Message   string
		RequestID string `xml:"RequestId,omitempty"`
		HostID    string `xml:"HostId,omitempty"`
		*Fencing
	}{Code: e.Code, Message: e.Message, RequestID: requestID, HostID: hostID, Fencing: e.Fencing})
	if err != nil {
		return e.BaseError().XMLBody(requestID, hostID)
	}
	return append([]byte(xml.Header), body...)
}

// HTMLBody implements [s3err.S3Error].
func (e Error) HTMLBody(requestID, _ string) []byte {
	return []byte("<html><body><h1>" + html.EscapeString(e.Code) + "</h1><p>" + html.EscapeString(e.Message) +
		"</p><p>RequestId: " + html.EscapeString(requestID) + "</p></body></html>\n")
}

// Refusal returns the S3 error for a refusal by the fence.
func Refusal(err error, code fence.Code) Error {
	facts := &Fencing{Code: code.SQLState, Hint: code.Hint}
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
	return Error{Code: code.S3Code, Message: err.Error() + ". " + code.Hint, Status: code.S3Status, Fencing: facts}
}

// NotImplemented reports that the operation, or an option of it, is not implemented.
var NotImplemented = s3err.GetAPIError(s3err.ErrNotImplemented)

// InvalidText reports a name or value that cannot be stored.
func InvalidText(what string) Error {
	return Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "The " + what + " is not UTF-8 text without NUL."}
}

// Unavailable asks the client to retry.
func Unavailable(message string) Error {
	return Error{Code: "ServiceUnavailable", Status: http.StatusServiceUnavailable, Message: message}
}

const (
	nothingChanged = "Nothing was changed."
	nothingNow     = "This attempt changed nothing; an earlier attempt of the same request may have."
)

// Repeated returns a message for a request that may have been sent before: the message speaks of this attempt alone.
func Repeated(message string) string { return strings.Replace(message, nothingChanged, nothingNow, 1) }

// MessageNoRight refuses a request for want of a right. The principal may have had it at an earlier attempt.
const MessageNoRight = "The principal of these credentials may not do this. " + nothingChanged

// Messages of 503. SDKs retry on their own.
const (
	MessageDatabaseAway = "PostgreSQL, which holds the fences and the names of objects, did not answer. " + nothingChanged + " Try again."
	MessageDoubted      = "PostgreSQL may have forgotten fences, or that can't be judged now; the gateway's /readyz says which, and what to do. " + nothingChanged
	MessageUnknown      = "PostgreSQL was lost while the request was committed, so its outcome is unknown. Try the same request again, with its amz-sdk-invocation-id: it is applied at most once."
	MessageUnknownOnce  = "PostgreSQL was lost while the request was committed, so its outcome is unknown. It has no amz-sdk-invocation-id: repeated, it may be applied a second time. Look what is there first."
	MessageNotTried     = "PostgreSQL was lost before this key's turn came. " + nothingChanged + " Try again."
	MessageCopied       = "The copy is made, but not under the id that the headers of this answer name. Try the same request again, with its amz-sdk-invocation-id."
	MessageLockAway     = "The lock did not answer, so it is unknown whether the lease is over, and whether an earlier attempt of this request will take effect. Try the same request again."
	MessageStoreFailed  = "The blob store failed. " + nothingChanged + " Try again."
)

// MessageBusy is the message for a PostgreSQL that answered with this SQLSTATE.
func MessageBusy(state string) string {
	return "PostgreSQL, which holds the fences and the names of objects, refused for now (SQLSTATE " + state + "). " + nothingChanged + " Try again."
}

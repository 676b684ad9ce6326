package transfer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/fencegate/fencegate/fence"
)

// UnknownError reports that a write was sent and its answer is lost: it may have been done. errors.Is matches
// [fence.ErrUnknown].
type UnknownError struct {
	Write string // "upload" or "copy"
	To    Object
	Err   error
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("the %s to %s may have been done: %v", e.Write, e.To, e.Err)
}

// Unwrap returns [fence.ErrUnknown] and Err.
func (e *UnknownError) Unwrap() []error { return []error{fence.ErrUnknown, e.Err} }

// explainWrite is explain for a request that writes an object.
func (c *Client) explainWrite(what, write string, to Object, err error) error {
	if !unanswered(err) {
		return c.explain(what, err)
	}
	if unsent, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		err = &UnreachableError{Endpoint: c.endpoint, Cause: unsent.Err}
	} else if api, ok := errors.AsType[smithy.APIError](err); ok {
		err = &Error{Code: api.ErrorCode(), Message: api.ErrorMessage()}
	}
	return &UnknownError{Write: write, To: to, Err: err}
}

// unanswered reports whether a request, or an attempt of it, was sent whole without a readable answer of the S3 port.
// The SDK's repetitions are no second write: the gateway knows them by their amz-sdk-invocation-id.
func unanswered(err error) bool {
	if errors.As(err, new(*lostAnswerError)) {
		return true
	}
	answer, ok := errors.AsType[*smithyhttp.ResponseError](err)
	if !ok {
		return false
	}
	api, isAPI := errors.AsType[smithy.APIError](err)
	if isAPI && strings.Contains(api.ErrorMessage(), fence.ErrUnknown.Error()) {
		return true // to the gateway, too: its PostgreSQL was lost
	}
	switch answer.HTTPStatusCode() {
	case http.StatusBadGateway, http.StatusGatewayTimeout: // of a balancer
		return true
	case http.StatusOK:
		return !isAPI // the answer broke off
	}
	return false
}

// rememberAttempts replaces the SDK's error, which is the last attempt's, if the answer to an earlier one is lost.
func rememberAttempts(stack *middleware.Stack) error {
	return stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("RememberAttempts", func(
		ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler,
	) (middleware.FinalizeOutput, middleware.Metadata, error) {
		out, metadata, err := next.HandleFinalize(ctx, in)
		attempts, _ := retry.GetAttemptResults(metadata)
		lost := slices.IndexFunc(attempts.Results, func(a retry.AttemptResult) bool { return unanswered(a.Err) })
		switch {
		case err == nil || lost < 0 || settled(err):
		case ctx.Err() != nil:
			err = &lostAnswerError{err} // says that it was interrupted
		default: // the last error may say that nothing was changed
			err = &lostAnswerError{attempts.Results[lost].Err}
		}
		return out, metadata, err
	}), "Retry", middleware.Before)
}

// settled reports whether an answer tells that no earlier attempt was done: that of a stale grant or of a failed
// precondition. The gateway looks for an earlier attempt before it. Other refusals may come without that look, and the
// one of expired credentials while the earlier attempt is under way.
func settled(err error) bool {
	answer, ok := errors.AsType[*smithyhttp.ResponseError](err)
	return ok && answer.HTTPStatusCode() == http.StatusPreconditionFailed
}

// lostAnswerError is the error of a request that was sent whole, or of such an attempt.
type lostAnswerError struct{ err error }

func (e *lostAnswerError) Error() string { return e.err.Error() }
func (e *lostAnswerError) Unwrap() error { return e.err }

// sentTracker is an HTTP client that tells requests that were sent whole from others.
type sentTracker struct{ *awshttp.BuildableClient }

func (s sentTracker) Do(req *http.Request) (*http.Response, error) {
	var sent atomic.Bool // written by the transport
	trace := &httptrace.ClientTrace{WroteRequest: func(wrote httptrace.WroteRequestInfo) {
		if wrote.Err == nil {
			sent.Store(true)
		}
	}}
	res, err := s.BuildableClient.Do(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	if err != nil && sent.Load() {
		err = &lostAnswerError{err}
	}
	return res, err
}

package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
)

// s3Outcome classifies an answer of the S3 port (docs/s3.md). The port answers 503 ServiceUnavailable both if nothing
// was changed and if the outcome is unknown; its message distinguishes them.
func s3Outcome(status int, code, message string) history.Outcome {
	switch {
	case status == http.StatusServiceUnavailable && code == "SlowDown":
		return history.Refused
	case status == http.StatusServiceUnavailable && strings.Contains(message, "Nothing was changed"):
		return history.Failed
	case status >= 400 && status < 500 && code != "":
		return history.Refused
	}
	return history.Unknown
}

// s3Failure classifies the error of one attempt, or of a call with one attempt; nil for nil.
func s3Failure(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{outcome: history.Unknown, err: err}
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		f.code = e.ErrorCode()
		if r, ok := errors.AsType[*awshttp.ResponseError](err); ok {
			f.outcome = s3Outcome(r.HTTPStatusCode(), f.code, e.ErrorMessage())
		}
		return f
	}
	if notDialed(err) {
		f.outcome, f.code = history.Failed, "unreachable"
	}
	return f
}

// notDialed reports that there was no connection, so that nothing was sent.
func notDialed(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "dial"
}

// fenced reports that an S3 code is a refusal by the fence.
func fenced(code string) bool {
	for _, c := range fence.Codes {
		// ErrUndrained shares its code with unavailable servers.
		if c.S3Code == code && !errors.Is(c.Err, fence.ErrUndrained) {
			return true
		}
	}
	return false
}

// attempts are the attempts that a client library made for one call. The last one's answer is the call's. It does not
// decide an earlier attempt without an answer, unless the fence refused it: the attempts of a call are one write
// (docs/s3.md, "Late attempts"), and a stale write stays stale.
type attempts struct {
	mu      sync.Mutex
	made    int
	unknown bool
}

func (a *attempts) add(f *failure) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.made++
	a.unknown = a.unknown || f != nil && f.outcome == history.Unknown
}

// failure classifies the call's error.
func (a *attempts) failure(err error) *failure {
	f := s3Failure(err)
	if f == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, answered := errors.AsType[smithy.APIError](err)
	switch {
	case a.made == 0 && !answered:
		f.outcome = history.Failed
	case a.unknown && !fenced(f.code):
		f.outcome = history.Unknown
	}
	return f
}

type attemptsKey struct{}

// noteAttempts adds the attempts of each call to the attempts in its context.
func noteAttempts(stack *middleware.Stack) error {
	note := middleware.FinalizeMiddlewareFunc("noteAttempts", func(
		ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler,
	) (middleware.FinalizeOutput, middleware.Metadata, error) {
		out, metadata, err := next.HandleFinalize(ctx, in)
		if a, ok := ctx.Value(attemptsKey{}).(*attempts); ok {
			a.add(s3Failure(err))
		}
		return out, metadata, err
	})
	return stack.Finalize.Insert(note, "Retry", middleware.After)
}

// scrubbed removes the secrets from a failure's text.
func scrubbed(f *failure, secrets ...string) error {
	if f == nil {
		return nil
	}
	text := f.err.Error()
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "…")
		}
	}
	if text != f.err.Error() {
		f.err = errors.New(text)
	}
	return f
}

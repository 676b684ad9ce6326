package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/fencegate/fencegate/robustness/history"
)

func TestAnAnswerOfTheS3PortSaysWhatWasDone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status        int
		code, message string
		want          history.Outcome
	}{
		{412, "StaleFencingToken", "stale", history.Refused},
		{403, "ExpiredToken", "expired", history.Refused},
		{400, "RequestTimeout", "Nothing was stored.", history.Refused},
		{503, "SlowDown", "Please reduce your request rate.", history.Refused},
		{503, "ServiceUnavailable", "The blob store failed. Nothing was changed. Try again.", history.Failed},
		{503, "ServiceUnavailable", "PostgreSQL was lost …, so its outcome is unknown.", history.Unknown},
		{503, "", "", history.Unknown},
		{500, "InternalError", "We encountered an internal error.", history.Unknown},
		{400, "", "", history.Unknown}, // not from the port
		{200, "", "", history.Unknown}, // truncated
	} {
		if got := s3Outcome(c.status, c.code, c.message); got != c.want {
			t.Errorf("%d %s %s: got %s, want %s", c.status, c.code, c.message, got, c.want)
		}
	}
}

func TestPythonThatFoundNoServerChangedNothing(t *testing.T) {
	t.Parallel()
	unsent := pythonError{Unsent: true, Message: "EndpointConnectionError"}
	a := pythonAnswer{Attempts: []pythonError{unsent, unsent}, Failure: &unsent}
	if f := a.failure(); f.outcome != history.Failed {
		t.Errorf("got %s", f.outcome)
	}
}

// An attempt without an answer may have been done, whatever the
// answer to a later attempt, unless that was refused as stale.
func TestALaterAttemptsAnswerSaysNothingOfAnEarlierOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		last pythonError
		want history.Outcome
	}{
		{pythonError{Status: 412, Code: "StaleFencingToken"}, history.Refused},
		{pythonError{Status: 503, Code: "SlowDown"}, history.Unknown},
		{pythonError{Unsent: true}, history.Unknown},
	} {
		a := pythonAnswer{Attempts: []pythonError{{Message: "ReadTimeoutError"}, c.last}, Failure: &c.last}
		if got := a.failure(); got.outcome != c.want {
			t.Errorf("%+v: got %s, want %s", c.last, got.outcome, c.want)
		}
	}
}

func TestASecretIsNoPartOfAFailure(t *testing.T) {
	t.Parallel()
	err := scrubbed(&failure{err: fmt.Errorf("the token %s of %s", "s3cret", "me")}, "", "s3cret")
	if strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "of me") {
		t.Errorf("got %q", err)
	}
}

func TestTheAttemptsOfACallAreJudgedTogether(t *testing.T) {
	t.Parallel()
	answer := func(status int, code, message string) error {
		return &awshttp.ResponseError{ResponseError: &smithyhttp.ResponseError{
			Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}},
			Err:      &smithy.GenericAPIError{Code: code, Message: message},
		}}
	}
	lost, unsent := errors.New("connection reset"), &net.OpError{Op: "dial", Err: errors.New("refused")}
	stale, slow := answer(412, "StaleFencingToken", "stale"), answer(503, "SlowDown", "")
	away := answer(503, "ServiceUnavailable", "Nothing was changed.")
	unknown := answer(503, "ServiceUnavailable", "its outcome is unknown")
	for _, c := range []struct {
		name     string
		attempts []error
		call     error // the call's error; by default the last attempt's
		want     history.Outcome
	}{
		{"a refusal", []error{stale}, nil, history.Refused},
		{"a limit", []error{slow, slow}, nil, history.Refused},
		{"nothing was changed", []error{slow, away}, nil, history.Failed},
		{"no answer", []error{lost}, nil, history.Unknown},
		{"no connection", []error{unsent, unsent}, nil, history.Failed},
		{"no connection after no answer", []error{lost, unsent}, nil, history.Unknown},
		{"a limit after no answer", []error{lost, slow}, nil, history.Unknown},
		{"nothing was changed after an unknown outcome", []error{unknown, away}, nil, history.Unknown},
		{"stale after no answer", []error{lost, stale}, nil, history.Refused},
		{"given up between attempts", []error{slow}, context.Canceled, history.Unknown},
		{"given up before the first", nil, context.Canceled, history.Failed},
	} {
		made := new(attempts)
		for _, err := range c.attempts {
			made.add(s3Failure(err))
			if c.call == nil || !errors.Is(c.call, context.Canceled) {
				c.call = err
			}
		}
		if got := made.failure(c.call); got.outcome != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got.outcome, c.want)
		}
	}
}

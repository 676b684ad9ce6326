package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/fencegate/fencegate/robustness/history"
)

// damageIsFound reads an object whose bytes do not match its metadata, and with an auditor's eyes.
func damageIsFound(t *testing.T, w *world) {
	for _, name := range []string{"s3-small", "s3-boto3", "publish"} {
		l := w.worker(t, name, 1).takes(t, w)
		s := l.all()[len(l.all())-1]
		h := map[string]func() *objects{
			"s3-small": func() *objects { return l.access.(*objects) },
			"s3-boto3": func() *objects { return l.access.(*byPython).objects },
			"publish":  func() *objects { return l.access.(*publisher).objects },
		}[name]()
		o := objectOf(setting{register: s.register, value: "named"}, 200<<10)
		o.Body = bytes.NewReader(bodyOf("other", 200<<10))
		_, err := do(bounded(t), h, (*s3.Client).PutObject, o)
		must(t, err)
		found := func() (n int) {
			for range 20 {
				saw, wrong, err := l.access.read(bounded(t), s.register)
				if err != nil || saw != "named" {
					t.Fatalf("%s: read %q, %v", name, saw, err)
				}
				if wrong != "" {
					n++
				}
			}
			return n
		}
		if n := found(); n < 10 { // some reads are only of the metadata
			t.Errorf("%s: %d of 20 reads saw that", name, n)
		}
		if h.whole = true; name != "s3-boto3" && found() < 20 {
			t.Errorf("%s: an auditor's read is not of the whole object", name)
		}
	}
}

// threeForms sends a body signed, as the SDK does it without TLS; with chunks and a trailer, as over TLS; and unsigned.
func threeForms(t *testing.T, w *world) {
	const sum, trailer = "X-Amz-Content-Sha256", "X-Amz-Trailer"
	l := w.worker(t, "s3-slow", 1).takes(t, w)
	h, sent := l.access.(*objects), http.Header{}
	h.env.s3.Transport = watched{h.env.s3.Transport, func(r *http.Request) { sent = r.Header }}
	for i, c := range []struct {
		how          []func(*s3.Options)
		sum, trailer string
	}{
		{nil, "", ""}, // the hash of the body
		{[]func(*s3.Options){chunked}, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "x-amz-checksum-crc32"},
		{[]func(*s3.Options){unsigned}, "UNSIGNED-PAYLOAD", ""},
	} {
		r := l.all()[0]
		r.value = fmt.Sprint("form", i)
		must(t, h.put(bounded(t), write{set: []setting{r}, pause: func(context.Context) {}}, 100<<10, 1, c.how...))
		if got := sent.Get(sum); got != c.sum && (c.sum != "" || len(got) != 64) || sent.Get(trailer) != c.trailer {
			t.Errorf("form %d: %v", i, sent)
		}
		if saw, wrong, err := h.read(bounded(t), r.register); saw != r.value || wrong != "" || err != nil {
			t.Errorf("form %d: read %q, %q, %v", i, saw, wrong, err)
		}
	}
}

// watched is a transport that shows its requests to a function.
type watched struct {
	http.RoundTripper

	look func(*http.Request)
}

func (t watched) RoundTrip(r *http.Request) (*http.Response, error) {
	t.look(r)
	return t.RoundTripper.RoundTrip(r)
}

func pythonKilled(t *testing.T, w *world) {
	l := w.worker(t, "s3-boto3", 2).takes(t, w)
	killed := false
	for i := range 20 {
		outcome, _ := l.writes(bounded(t), fmt.Sprintf("w%d", i), nil, func(context.Context) {
			if h := l.access.(*byPython); !killed {
				killed = true
				h.python.program.kill()
			}
		})
		if outcome == history.Done && killed {
			return
		}
	}
	t.Errorf("killed %v, and no write is done", killed)
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
	stale, limit := answer(412, "StaleFencingToken", "stale"), answer(503, "SlowDown", "")
	away := answer(503, "ServiceUnavailable", "The blob store failed. Nothing was changed. Try again.")
	unknown := answer(503, "ServiceUnavailable", "PostgreSQL was lost …, so its outcome is unknown.")
	for _, c := range []struct {
		name     string
		attempts []error
		call     error // the call's error; nil: the last attempt's
		want     history.Outcome
	}{
		{"stale", []error{stale}, nil, history.Refused},
		{"expired", []error{answer(403, "ExpiredToken", "expired")}, nil, history.Refused},
		{"late", []error{answer(400, "RequestTimeout", "Nothing was stored.")}, nil, history.Refused},
		{"a limit", []error{limit, limit}, nil, history.Refused},
		{"nothing was changed", []error{limit, away}, nil, history.Failed},
		{"unknown", []error{unknown}, nil, history.Unknown},
		{"an internal error", []error{answer(500, "InternalError", "We encountered an internal error.")}, nil, history.Unknown},
		{"not from the port", []error{answer(400, "", "")}, nil, history.Unknown},
		{"not from the port either", []error{answer(503, "", "")}, nil, history.Unknown},
		{"truncated", []error{answer(200, "", "")}, nil, history.Unknown},
		{"no answer", []error{lost}, nil, history.Unknown},
		{"no connection", []error{unsent, unsent}, nil, history.Failed},
		{"no connection after no answer", []error{lost, unsent}, nil, history.Unknown},
		{"a limit after no answer", []error{lost, limit}, nil, history.Unknown},
		{"nothing was changed after an unknown outcome", []error{unknown, away}, nil, history.Unknown},
		{"stale after no answer", []error{lost, stale}, nil, history.Refused},
		{"given up between attempts", []error{limit}, context.Canceled, history.Unknown},
		{"given up before the first", nil, context.Canceled, history.Failed},
	} {
		made, last := new(attempts), c.call
		for _, err := range c.attempts {
			if made.add(s3Failure(err)); c.call == nil {
				last = err
			}
		}
		var got history.Op
		(&worker{}).setOutcome(&got, made.failure(s3Failure(last)))
		if got.Outcome != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got.Outcome, c.want)
		}
	}
	gone := pythonError{Unsent: true, Message: "EndpointConnectionError"}
	for want, first := range map[history.Outcome]pythonError{history.Failed: gone, history.Unknown: {Message: "ReadTimeoutError"}} {
		var got history.Op
		(&worker{}).setOutcome(&got, pythonAnswer{Attempts: []pythonError{first, gone}, Failure: &gone}.failure())
		if got.Outcome != want {
			t.Errorf("boto3: got %s, want %s", got.Outcome, want)
		}
	}
}

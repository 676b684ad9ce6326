package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/transfer"
)

// away stands for the status of an S3 port that does not answer.
const away = 0

// die ends the S3 port instead of an answer: whoever asks again is refused the connection.
func die(r *http.Request) {
	if server, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok {
		_ = server.Close()
	}
	panic(http.ErrAbortHandler)
}

// answering answers the first attempt of a request with one status, and the others with another one.
func answering(first, later int, code string) http.HandlerFunc {
	var attempts atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		status, again := first, attempts.Add(1) > 1
		if again {
			status = later
		}
		switch {
		case status == away && later == away:
			die(r)
		case status == away:
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
		if again && code != "" {
			_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>said</Message></Error>", code)
		}
	}
}

// The SDK's error is that of the last attempt, which may not have been sent at all.
func TestALostAnswerIsNotForgottenByTheNextAttempt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "report.pdf")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	from, to := transfer.Object{Bucket: "orders", Key: "1001/a"}, transfer.Object{Bucket: "orders", Key: "1001/b"}
	writes := map[string]func(context.Context, *transfer.Client) error{
		"upload": func(ctx context.Context, c *transfer.Client) error {
			return c.Upload(ctx, file, to, transfer.Options{})
		},
		"copy": func(ctx context.Context, c *transfer.Client) error { return c.Copy(ctx, from, to, transfer.Options{}) },
	}
	for name, c := range map[string]struct {
		first, later int
		code         string
		want         error // nil: neither unknown nor stale
	}{
		"the port dies":                         {away, away, "", fence.ErrUnknown},
		"nothing is behind the balancer":        {away, http.StatusServiceUnavailable, "", fence.ErrUnknown},
		"the balancer hears nothing":            {http.StatusBadGateway, http.StatusServiceUnavailable, "", fence.ErrUnknown},
		"the balancer's time is over":           {http.StatusGatewayTimeout, http.StatusInternalServerError, "InternalError", fence.ErrUnknown},
		"the credentials expire":                {away, http.StatusBadRequest, "ExpiredToken", fence.ErrUnknown},
		"nothing was done, and nothing will be": {away, http.StatusPreconditionFailed, "StaleFencingToken", fence.ErrStale},
		"a precondition failed":                 {away, http.StatusPreconditionFailed, "PreconditionFailed", nil},
		"no attempt was taken":                  {http.StatusServiceUnavailable, http.StatusServiceUnavailable, "ServiceUnavailable", nil},
	} {
		for write, do := range writes {
			t.Run(name+", "+write, func(t *testing.T) {
				t.Parallel()
				port, _ := at(t, answering(c.first, c.later, c.code))
				err := do(t.Context(), port)
				if err == nil || errors.Is(err, fence.ErrUnknown) != (c.want == fence.ErrUnknown) || errors.Is(err, fence.ErrStale) != (c.want == fence.ErrStale) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			})
		}
	}
}

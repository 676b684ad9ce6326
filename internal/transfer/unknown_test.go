package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/transfer"
)

// away stands for the status of an S3 port that does not answer.
const away = 0

// die closes the S3 port instead of answering. Later connections are refused.
func die(r *http.Request) {
	if server, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok {
		_ = server.Close()
	}
	panic(http.ErrAbortHandler)
}

type answer struct {
	status        int
	code, message string // "": the body is empty
}

// answering answers the first attempt of a request in one way, and the others in another one.
func answering(first, later answer) http.HandlerFunc {
	var attempts atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		a := later
		if attempts.Add(1) == 1 {
			a = first
		}
		switch {
		case a.status == away && later.status == away:
			die(r)
		case a.status == away:
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(a.status)
		if a.code != "" {
			_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", a.code, a.message)
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
	lost, unavailable := answer{status: away}, answer{status: http.StatusServiceUnavailable}
	nothing, unknown := unavailable, unavailable
	nothing.code, nothing.message = "ServiceUnavailable", "PostgreSQL did not answer. Nothing was changed."
	unknown.code, unknown.message = "ServiceUnavailable", "PostgreSQL was lost, so its outcome is unknown."
	stale := answer{http.StatusPreconditionFailed, "StaleFencingToken", "said"}
	for name, c := range map[string]struct {
		first, later answer
		want         error // nil: neither unknown nor stale
	}{
		"the port dies":                  {lost, lost, fence.ErrUnknown},
		"nothing is behind the balancer": {lost, unavailable, fence.ErrUnknown},
		"the balancer hears nothing":     {answer{status: http.StatusBadGateway}, unavailable, fence.ErrUnknown},
		"the balancer's time is over":    {answer{status: http.StatusGatewayTimeout}, nothing, fence.ErrUnknown},
		"PostgreSQL dies":                {unknown, nothing, fence.ErrUnknown},
		"PostgreSQL dies again":          {nothing, unknown, fence.ErrUnknown},
		"the credentials expire":         {lost, answer{http.StatusBadRequest, "ExpiredToken", "said"}, fence.ErrUnknown},
		"the grant is stale":             {lost, stale, fence.ErrStale},
		"a precondition failed":          {lost, answer{http.StatusPreconditionFailed, "PreconditionFailed", "said"}, nil},
		"no attempt was taken":           {nothing, nothing, nil},
	} {
		for write, do := range writes {
			t.Run(name+", "+write, func(t *testing.T) {
				t.Parallel()
				port, _ := at(t, answering(c.first, c.later))
				err := do(t.Context(), port)
				for _, is := range []error{fence.ErrUnknown, fence.ErrStale} {
					if err == nil || errors.Is(err, is) != errors.Is(c.want, is) {
						t.Errorf("got %v, want %v", err, c.want)
					}
				}
				if errors.Is(c.want, fence.ErrUnknown) && strings.Contains(err.Error(), "Nothing was changed") {
					t.Errorf("the error contradicts itself: %v", err)
				}
			})
		}
	}
}

func TestAnUploadThatIsInterruptedAfterALostAnswerSaysBoth(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "report.pdf")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var attempts atomic.Int32
	c, _ := at(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if attempts.Add(1) > 1 {
			interrupt()
			<-r.Context().Done()
		}
		panic(http.ErrAbortHandler)
	})
	err := c.Upload(ctx, file, transfer.Object{Bucket: "orders", Key: "x"}, transfer.Options{})
	if !errors.Is(err, fence.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/wire"
)

// waiting answers acquisitions without a network, on a bubble's clock.
type waiting struct {
	answer func(n int, wait time.Duration) (after time.Duration, status int, body string)

	waits, keys []string
}

func (w *waiting) RoundTrip(req *http.Request) (*http.Response, error) {
	var body struct{ Wait string }
	if err := json.NewDecoder(req.Body).Decode(&body); err != nil {
		return nil, err
	}
	w.waits, w.keys = append(w.waits, body.Wait), append(w.keys, req.Header.Get(wire.IdempotencyKey))
	wait, _ := time.ParseDuration(body.Wait) // "": no wait
	after, status, text := w.answer(len(w.waits), wait)
	select {
	case <-time.After(after):
		return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(text)), Request: req}, nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

const (
	busy = `{"code":"held","title":"Held by another"}`
	over = `{"code":"lease_lost","title":"The lease is over"}`
)

// repeating is an acquisition whose first answer is lost.
type repeating struct {
	wait   time.Duration
	answer func(n int, wait time.Duration) (after time.Duration, status int, body string)
	waits  []string // that the requests ask for
	took   time.Duration
	keys   int
}

func (r repeating) try(t *testing.T, ask func(context.Context, *client.Client) error) {
	t.Helper()
	w := &waiting{answer: r.answer}
	c, err := client.New(client.Config{URL: "http://a", HTTPClient: &http.Client{Transport: w}})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err = ask(t.Context(), c)
	if p, ok := errors.AsType[*client.Problem](err); !ok || p.Code != wire.CodeHeld {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took != r.took {
		t.Errorf("took %v, want %v", took, r.took)
	}
	if !slices.Equal(w.waits, r.waits) {
		t.Errorf("waits %q, want %q", w.waits, r.waits)
	}
	if keys := len(slices.Compact(w.keys)); keys != r.keys {
		t.Errorf("%d keys, want %d", keys, r.keys)
	}
}

func TestARepeatWaitsForTheRestOfTheWait(t *testing.T) {
	t.Parallel()
	balancer := func(_ int, wait time.Duration) (time.Duration, int, string) {
		if wait > time.Minute {
			return time.Minute, http.StatusGatewayTimeout, "<html>504"
		}
		return wait, http.StatusConflict, busy
	}
	for name, test := range map[string]repeating{
		"a balancer ends the first": {2 * time.Minute, balancer, []string{"2m0s", "59.95s"}, 2 * time.Minute, 1},
		"the wait is over": {time.Minute, func(n int, _ time.Duration) (time.Duration, int, string) {
			if n == 1 {
				return time.Minute, http.StatusGatewayTimeout, "<html>504"
			}
			return 0, http.StatusConflict, busy
		}, []string{"1m0s", ""}, time.Minute + 50*time.Millisecond, 1},
		"the lease of the first key is over": {time.Minute, func(n int, wait time.Duration) (time.Duration, int, string) {
			if n == 1 {
				return 20 * time.Second, http.StatusGone, over
			}
			return wait, http.StatusConflict, busy
		}, []string{"1m0s", "40s"}, time.Minute, 2},
	} {
		for call, ask := range map[string]func(context.Context, *client.Client) error{
			"one": func(ctx context.Context, c *client.Client) error {
				_, err := c.Acquire(ctx, client.AcquireRequest{Resource: "a", Wait: test.wait})
				return err
			},
			"several": func(ctx context.Context, c *client.Client) error {
				_, err := c.AcquireAll(ctx, []string{"a", "b"}, client.AcquireRequest{Wait: test.wait})
				return err
			},
		} {
			t.Run(name+", "+call, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { test.try(t, ask) })
			})
		}
	}
}

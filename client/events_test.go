package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/wire"
)

// beating answers with a stream of events and heartbeats, and freezes after some of them. It runs on a bubble's clock.
type beating struct{ beats int }

func (b beating) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.beats < 0 {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	r, w := io.Pipe()
	go func() {
		_, _ = io.WriteString(w, "data: {\"id\":\"a-1\"}\n\n")
		for range b.beats {
			<-time.After(15 * time.Second)
			_, _ = io.WriteString(w, ":\n\n")
		}
		<-req.Context().Done()
		_ = w.CloseWithError(req.Context().Err())
	}()
	return &http.Response{StatusCode: http.StatusOK, Body: r, Request: req}, nil
}

func TestAStreamWithoutHeartbeatsEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		beats  int
		follow bool
		took   time.Duration
	}{
		"after heartbeats":    {10, true, 195 * time.Second},
		"after its events":    {0, false, 45 * time.Second},
		"before it has begun": {-1, true, 45 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, err := client.New(client.Config{URL: "http://a", HTTPClient: &http.Client{Transport: beating{test.beats}}})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				err = c.Events(within(t, time.Hour), "", test.follow, func(wire.Event) error { return nil })
				if _, ok := errors.AsType[*client.UnreachableError](err); !ok || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
				if took := time.Since(began); took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
			})
		})
	}
}

func TestAReaderOfEventsMayTakeItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := client.New(client.Config{URL: "http://a", HTTPClient: &http.Client{Transport: beating{1}}})
		if err != nil {
			t.Fatal(err)
		}
		enough := errors.New("enough")
		err = c.Events(t.Context(), "", true, func(wire.Event) error {
			<-time.After(time.Hour)
			return enough
		})
		if !errors.Is(err, enough) {
			t.Errorf("%v", err)
		}
	})
}

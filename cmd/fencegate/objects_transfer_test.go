package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/client"
)

// hung is a gateway that answers only the renewals that it names, and does not answer the others at all.
type hung struct {
	answers []int
	began   time.Time
	asked   []time.Duration
}

func (h *hung) RoundTrip(r *http.Request) (*http.Response, error) {
	h.asked = append(h.asked, time.Since(h.began))
	if !slices.Contains(h.answers, len(h.asked)) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"valid_ms":30000}`))}, nil
}

func TestATransferKeepsItsLeaseThroughAHungRenewalAndEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		answers []int
		want    []time.Duration // of the first renewals
		end     time.Duration
	}{
		{nil, []time.Duration{10 * time.Second, 16250 * time.Millisecond, 22500 * time.Millisecond, 28750 * time.Millisecond}, 30 * time.Second},
		{[]int{3}, []time.Duration{10 * time.Second, 16250 * time.Millisecond, 22500 * time.Millisecond, 32500 * time.Millisecond}, 52500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := &hung{answers: tc.answers, began: time.Now()}
			c, err := client.New(client.Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: h}})
			if err != nil {
				t.Fatal(err)
			}
			held, lose := context.WithCancelCause(t.Context())
			renewLease(held, c, client.Lease{TTL: 30 * time.Second, Deadline: client.DeadlineAfter(time.Now(), 30*time.Second)}, lose)
			if took := time.Since(h.began); took != tc.end || !errors.Is(context.Cause(held), errNotRenewed) {
				t.Errorf("it ended after %s: %v, want %s", took, context.Cause(held), tc.end)
			}
			if len(h.asked) < len(tc.want) || !slices.Equal(h.asked[:len(tc.want)], tc.want) {
				t.Errorf("renewals at %v, want %v", h.asked, tc.want)
			}
		})
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
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

// Under a run whose lease is over the S3 port refuses the last credentials. The command says so at once.
func TestATransferAfterItsLeaseSaysThatItIsOver(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out.csv")
	writeFile(t, file, "a,b\n")
	for _, c := range []struct {
		status, exit int
		code, hint   string
	}{
		{http.StatusBadRequest, exitLost, "ExpiredToken", leaseOver},
		{http.StatusPreconditionFailed, 76, "StaleFencingToken", "A newer holder has taken over"},
	} {
		var asked atomic.Int32
		mux := http.NewServeMux()
		mux.HandleFunc("/credentials", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"AccessKeyId":"a","SecretAccessKey":"b","Token":"c","Expiration":%q}`, time.Now().Add(10*time.Second).UTC().Format(time.RFC3339))
		})
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(c.status)
			_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>It is over.</Message></Error>", c.code)
		})
		server := httptest.NewServer(mux)
		defer server.Close()
		vars := map[string]string{"AWS_ENDPOINT_URL_S3": server.URL, "AWS_CONTAINER_CREDENTIALS_FULL_URI": server.URL + "/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "t"}
		commands := [][]string{{"cp", file, "s3://orders/1"}, {"cp", "s3://orders/1", "s3://orders/2"}, {"cat", "s3://orders/1"}, {"stage", "orders", "1", file}}
		for _, args := range commands {
			code, _, stderr := cli(t, vars, append([]string{"objects"}, args...)...)
			if code != c.exit || !strings.Contains(stderr, "hint: "+c.hint) {
				t.Errorf("%s, %s: %d %q, want %d", c.code, args, code, stderr, c.exit)
			}
		}
		if n := int(asked.Load()); n != len(commands) {
			t.Errorf("%s: %d requests for %d commands", c.code, n, len(commands))
		}
	}
}

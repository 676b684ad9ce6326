package client_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
)

const granted = `{"resource":"a","token":"7","grant":"7.` + "0123456789abcdef0123456789abcdef" + `","handle":"h","ttl_ms":1000,"elapsed_ms":1,"valid_ms":900}`

// gateway counts its requests and their keys, and calls answer for the rest.
type gateway struct {
	*httptest.Server

	asked atomic.Int32
	keys  chan string
}

func newGateway(t *testing.T, answer func(n int32, w http.ResponseWriter)) *gateway {
	t.Helper()
	g := &gateway{keys: make(chan string, 10)}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.keys <- r.Header.Get("Idempotency-Key")
		answer(g.asked.Add(1), w)
	}))
	t.Cleanup(g.Close)
	return g
}

func says(status int, body string) func(int32, http.ResponseWriter) {
	return func(_ int32, w http.ResponseWriter) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// cut ends the connection without an answer: whether the request was carried out is unknown.
func cut(int32, http.ResponseWriter) { panic(http.ErrAbortHandler) }

func of(t *testing.T, urls string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: urls})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const unready = `{"title":"Unavailable","code":"unavailable","part":"gateway"}`

func TestTheNextGatewayIsAskedWhereOneIsAwayOrNotReady(t *testing.T) {
	t.Parallel()
	leaving, serves := newGateway(t, says(http.StatusServiceUnavailable, unready)), newGateway(t, says(http.StatusCreated, granted))
	c := of(t, "http://127.0.0.1:1, "+leaving.URL+","+serves.URL)
	for range 2 { // the second time it is asked first
		lease, err := c.Acquire(t.Context(), client.AcquireRequest{Resource: "a"})
		if err != nil || lease.Token != 7 {
			t.Fatalf("%v, %v", lease.Token, err)
		}
	}
	if leaving.asked.Load() != 1 || serves.asked.Load() != 2 {
		t.Errorf("asked %d and %d times", leaving.asked.Load(), serves.asked.Load())
	}
}

// While the master key is replaced, a gateway may not know the key that another one signs with.
func TestTheNextGatewayIsAskedWhereOneDoesNotKnowTheHandle(t *testing.T) {
	t.Parallel()
	const foreign = `{"title":"Invalid input","code":"invalid_input","field":"handle","detail":"of another"}`
	const malformed = `{"title":"Invalid input","code":"invalid_input","field":"ttl","detail":"is negative"}`
	const renewed = `{"resource":"a","token":"7","ttl_ms":1000,"elapsed_ms":1,"valid_ms":900}`
	stranger := newGateway(t, says(http.StatusBadRequest, foreign))
	issuer := newGateway(t, says(http.StatusOK, renewed))
	c := of(t, stranger.URL+","+issuer.URL)
	for range 2 { // the second time the issuer is asked first
		if _, err := c.Renew(t.Context(), "h", time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if stranger.asked.Load() != 1 || issuer.asked.Load() != 2 {
		t.Errorf("asked %d and %d times", stranger.asked.Load(), issuer.asked.Load())
	}
	refuses := newGateway(t, says(http.StatusBadRequest, malformed))
	for urls, want := range map[string]string{
		stranger.URL:                         "of another",
		stranger.URL + "," + stranger.URL:    "of another",
		stranger.URL + ",http://127.0.0.1:1": "no answer from the gateway at http://127.0.0.1:1",
		"http://127.0.0.1:1," + stranger.URL: "no answer from the gateway at http://127.0.0.1:1",
		refuses.URL + "," + issuer.URL:       "is negative",
		stranger.URL + "," + refuses.URL:     "is negative",
	} {
		if _, err := of(t, urls).Renew(t.Context(), "h", time.Second); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", urls, err, want)
		}
	}
}

func TestAnAcquisitionWhoseAnswerIsLostIsRepeatedWithItsKey(t *testing.T) {
	t.Parallel()
	g := newGateway(t, func(n int32, w http.ResponseWriter) {
		if n == 1 {
			cut(n, w)
		}
		says(http.StatusCreated, granted)(n, w)
	})
	if _, err := of(t, g.URL).Acquire(t.Context(), client.AcquireRequest{Resource: "a", TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	if first, second := <-g.keys, <-g.keys; first == "" || first != second {
		t.Errorf("keys %q and %q", first, second)
	}
}

func TestWhatMustNotBeDoneTwiceIsNotSentTwice(t *testing.T) {
	t.Parallel()
	first, second := newGateway(t, cut), newGateway(t, says(http.StatusNoContent, ""))
	c := of(t, first.URL+","+second.URL)
	_, err := c.Revoke(t.Context(), "a", "me")
	if lost, ok := errors.AsType[*client.UnreachableError](err); !ok || lost.URL != first.URL || !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("%v", err)
	}
	if n := second.asked.Load(); n != 0 {
		t.Errorf("the other gateway was asked %d times", n)
	}
	if err := c.Release(t.Context(), "h"); err != nil { // may be sent twice
		t.Error(err)
	}
}

// A gateway of an earlier version may say that nothing was done although it has raised the fence.
func TestWhatMustNotBeDoneTwiceIsNotSentTwiceAfterAnAnswer(t *testing.T) {
	t.Parallel()
	first, second := newGateway(t, says(http.StatusServiceUnavailable, unready)), newGateway(t, says(http.StatusOK, `{"resource":"a","token":"36"}`))
	c := of(t, first.URL+","+second.URL)
	if _, err := c.Revoke(t.Context(), "a", "me"); err == nil {
		t.Error("no error")
	}
	if n := second.asked.Load(); n != 0 {
		t.Errorf("the other gateway was asked %d times", n)
	}
	if _, err := c.Revoke(t.Context(), "a", "me"); err != nil { // by the caller, at the gateway that may be available
		t.Error(err)
	}
	if first.asked.Load() != 1 || second.asked.Load() != 1 {
		t.Errorf("asked %d and %d times", first.asked.Load(), second.asked.Load())
	}
	if _, err := of(t, "http://127.0.0.1:1,"+second.URL).Revoke(t.Context(), "a", "me"); err != nil { // it was not sent to the first
		t.Error(err)
	}
}

func TestAnUnknownOutcomeStaysUnknownWhereTheOtherGatewaysAreAway(t *testing.T) {
	t.Parallel()
	g := newGateway(t, cut)
	_, err := of(t, g.URL+",http://127.0.0.1:1").Acquire(t.Context(), client.AcquireRequest{Resource: "a"})
	if lost, ok := errors.AsType[*client.UnreachableError](err); !ok || lost.URL != g.URL {
		t.Errorf("%v", err)
	}
}

// Two answers in a row may be lost if a stopping process accepts a connection.
func TestAnAnswerThatABalancerLostIsAskedForAgain(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(int32, http.ResponseWriter){"502": says(http.StatusBadGateway, "<html>502"), "no answer": cut} {
		g := newGateway(t, func(n int32, w http.ResponseWriter) {
			if n <= 2 {
				lose(n, w)
				return
			}
			says(http.StatusCreated, granted)(n, w)
		})
		if _, err := of(t, g.URL).Acquire(t.Context(), client.AcquireRequest{Resource: "a"}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if first, second, third := <-g.keys, <-g.keys, <-g.keys; first == "" || first != second || second != third {
			t.Errorf("%s: keys %q, %q and %q", name, first, second, third)
		}
	}
}

func TestARepeatEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	g := newGateway(t, func(n int32, w http.ResponseWriter) {
		cancel()
		says(http.StatusBadGateway, "<html>502")(n, w)
	})
	if err := of(t, g.URL).Release(ctx, "h"); err == nil {
		t.Error("no error")
	}
	if n := g.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// A balancer or a log-in page answers for the gateway.
func TestAnAnswerOfAnotherServerIsNoRelease(t *testing.T) {
	t.Parallel()
	page := newGateway(t, says(http.StatusOK, "<html>log in</html>"))
	for status, says := range map[int]string{
		http.StatusMovedPermanently: page.URL + "/login", http.StatusFound: page.URL + "/login", http.StatusTemporaryRedirect: page.URL + "/login",
		http.StatusOK: "200 OK",
	} {
		g := newGateway(t, func(_ int32, w http.ResponseWriter) {
			w.Header().Set("Location", page.URL+"/login?state=secret")
			w.WriteHeader(status)
		})
		for name, hc := range map[string]*http.Client{"default": nil, "given": {}} {
			c, err := client.New(client.Config{URL: g.URL, HTTPClient: hc})
			if err != nil {
				t.Fatal(err)
			}
			err = c.Release(t.Context(), "h")
			if _, ok := errors.AsType[*client.Problem](err); !ok || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%d, %s client: %v", status, name, err)
			}
		}
	}
	if n := page.asked.Load(); n != 0 {
		t.Errorf("the other server was asked %d times", n)
	}
}

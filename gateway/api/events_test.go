package api_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

func withEvents(t *testing.T, keep int) (*activity.Feed, option) {
	t.Helper()
	feed := activity.New(activity.Config{Keep: keep})
	t.Cleanup(feed.Close)
	return feed, func(c *api.Config) { c.Events = feed }
}

// goClient is the Go client of a server.
func goClient(t *testing.T, way http.RoundTripper) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: "http://127.0.0.1:7070", HTTPClient: &http.Client{Transport: way}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEventsAreStreamedFromWhereTheReaderWas(t *testing.T) {
	t.Parallel()
	feed, on := withEvents(t, 3)
	c := goClient(t, transportTo(t, newServer(t, newFakes(), on)))
	tell := func(resource string) { feed.Tell(activity.Event{Kind: wire.EventAcquired, Resource: resource}) }
	tell("r1")
	tell("r2")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan wire.Event, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- c.Events(ctx, "", true, func(e wire.Event) error { got <- e; return nil })
	}()
	want := func(resource string) wire.Event {
		t.Helper()
		e := <-got
		if e.Resource != resource || e.ID == "" || e.Time.IsZero() {
			t.Errorf("%+v; want %s", e, resource)
		}
		return e
	}
	want("r1")
	second := want("r2")
	tell("r3")
	want("r3")
	cancel()
	if err := <-ended; err == nil {
		t.Error("the stream ended without a word")
	}
	for _, r := range []string{"r4", "r5", "r6"} {
		tell(r)
	}
	collect := func(after string) (all []string) {
		t.Helper()
		err := c.Events(t.Context(), after, false, func(e wire.Event) error {
			all = append(all, e.Kind+" "+e.Resource)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return all
	}
	if got := strings.Join(collect(second.ID), ", "); got != "missed , acquired r4, acquired r5, acquired r6" {
		t.Errorf("got %q", got)
	}
}

func TestAStreamOfEventsEndsWithTheServer(t *testing.T) {
	t.Parallel()
	_, on := withEvents(t, 3)
	url, stop := serve(t, newServer(t, newFakes(), on))
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get(url + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() || lines.Text() != ":" || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%v %q", resp.Header, lines.Text())
	}
	stop()
	for lines.Scan() { // to its end
	}
}

func TestEventsAreForWhoMayUseTheAPI(t *testing.T) {
	t.Parallel()
	_, on := withEvents(t, 3)
	s := newServer(t, newFakes(), on, func(c *api.Config) { c.BearerToken = "correct horse" })
	if a := request(t, s, "GET", "/v1/events?follow=false", ""); a.status != http.StatusUnauthorized {
		t.Errorf("without a token: %d %s", a.status, a.text)
	}
	if a := request(t, s, "GET", "/v1/events?follow=false", "", "Authorization", "Bearer correct horse"); a.status != http.StatusOK {
		t.Errorf("with the token: %d %s", a.status, a.text)
	}
	s = newServer(t, newFakes())
	if a := request(t, s, "GET", "/v1/events", ""); a.status != http.StatusNotImplemented {
		t.Errorf("where there are none: %d %s", a.status, a.text)
	}
	s = newServer(t, newFakes(), on)
	for _, query := range []string{"follow=perhaps", "after=x", "kind=acquired"} {
		if a := request(t, s, "GET", "/v1/events?"+query, ""); a.status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, a.status, a.text)
		}
	}
}

func TestWhatTheAPIDoesIsTold(t *testing.T) {
	t.Parallel()
	feed, on := withEvents(t, 100)
	f := newFakes()
	s := newServer(t, f, on)
	h := aHandle(t, s)
	request(t, s, "POST", "/v1/leases/release", `{"handle":"`+h+`"}`)
	request(t, s, "POST", "/v1/resources/orders%2F1001/revoke", `{"holder":"ops"}`)
	f.err = &api.StatementError{SQLState: "ZF001", Operation: "UPDATE", Table: "orders", Cause: &fence.StaleError{Resource: "orders/1001", Presented: 33, Recorded: 34}}
	request(t, s, "POST", "/v1/sql", `{"statements":[{"sql":"UPDATE orders SET a = 'secret'"}]}`, "Fencing-Resource", "orders/1001", "Fencing-Token", "33."+seal.Reveal(), "User-Agent", "curl/8")
	var got []string
	for _, e := range feed.Kept("") {
		if e.Kind == wire.EventRefused && (e.Surface != wire.SurfaceSQL || e.Statement != "UPDATE" || e.Table != "orders" || e.App != "curl/8" || e.Client == "") {
			t.Errorf("%+v", e)
		}
		got = append(got, strings.Join([]string{e.Kind, e.Resource, e.Presented.String(), e.Recorded.String(), e.Holder}, " "))
	}
	want := "acquired orders/1001 0 34 |released orders/1001 34 0 |revoked orders/1001 0 35 ops|refused orders/1001 33 34 "
	if text := strings.Join(got, "|"); text != want {
		t.Errorf("recorded %s, want %s", text, want)
	}
}

func TestARefusalIsShownHoweverMuchElseHappened(t *testing.T) {
	t.Parallel()
	feed, on := withEvents(t, 0)
	way := transportTo(t, newServer(t, newFakes(), on))
	feed.Tell(activity.Event{Kind: wire.EventRefused, Code: "ZF001", Resource: "orders/1001"})
	for range 5000 {
		feed.Tell(activity.Event{Kind: wire.EventAcquired, Resource: "busy"})
	}
	c := goClient(t, way)
	var recorded []string
	if err := c.Refusals(t.Context(), "", false, func(e wire.Event) error { recorded = append(recorded, e.Kind+" "+e.Resource); return nil }); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(recorded, ", "); got != "refused orders/1001" {
		t.Errorf("the stream recorded %q", got)
	}
	_, page := newBrowser(t, way).do("/", nil)
	_, refused, _ := strings.Cut(page, `<tbody id="refused"`)
	refused, rest, _ := strings.Cut(refused, "</tbody>")
	if strings.Count(refused, "orders/1001") != 1 || strings.Contains(refused, "busy") || strings.Contains(rest, "orders/1001") {
		t.Errorf("refused: %s", refused)
	}
}

package client_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
)

// at makes a client of a gateway that answers with a status and a body.
func at(t *testing.T, status int, body string) *client.Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(srv.Close)
	c, err := client.New(client.Config{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestARefusalIsTheFencesErrorOnThisSideToo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body string
		want error
	}{
		"stale":   {`{"title":"Stale","code":"ZF001","detail":"stale","hint":"Stop."}`, fence.ErrStale},
		"invalid": {`{"title":"Invalid","code":"invalid_input"}`, fence.ErrInvalid},
	} {
		err := at(t, http.StatusPreconditionFailed, c.body).Release(t.Context(), "handle")
		var problem *client.Problem
		if !errors.Is(err, c.want) || !errors.As(err, &problem) || problem.Status != http.StatusPreconditionFailed {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The User-Agent of a request names the program in events.
func TestARequestNamesTheProgram(t *testing.T) {
	t.Parallel()
	agents := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agents <- r.UserAgent()
		_, _ = io.WriteString(w, `{}`)
	}))
	t.Cleanup(srv.Close)
	for want, set := range map[string]string{"fencegate-client": "", "nightly/2": "nightly/2"} {
		c, err := client.New(client.Config{URL: srv.URL, UserAgent: set})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Resource(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
		if got := <-agents; got != want {
			t.Errorf("User-Agent %q, want %q", got, want)
		}
		for _, one := range c.Gateways() {
			if _, err := one.Resource(t.Context(), "r"); err != nil {
				t.Fatal(err)
			}
			if got := <-agents; got != want {
				t.Errorf("of one of several gateways: User-Agent %q, want %q", got, want)
			}
		}
	}
}

func TestAnAnswerThatIsNoGatewaysSaysSo(t *testing.T) {
	t.Parallel()
	err := at(t, http.StatusBadGateway, "<html>proxy\n error</html>").Release(t.Context(), "handle")
	var problem *client.Problem
	if !errors.As(err, &problem) || problem.Status != http.StatusBadGateway || !strings.Contains(err.Error(), "<html>proxy error</html>") || problem.Hint() == "" {
		t.Errorf("%v", err)
	}
}

func TestNoAnswerIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	c, err := client.New(client.Config{URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	var unreachable *client.UnreachableError
	if err := c.Release(t.Context(), "handle"); !errors.Is(err, fence.ErrUnknown) || !errors.As(err, &unreachable) {
		t.Errorf("%v", err)
	}
}

func TestAnAddressWithSecretsOrAQueryIsRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "127.0.0.1:7070", "ftp://host", "http://user:secret@host", "http://host?token=secret", "http://host/#x"} {
		_, err := client.New(client.Config{URL: url})
		if !errors.Is(err, fence.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

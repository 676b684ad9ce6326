package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// telling is a gateway with kept events, each "id second resource".
func telling(t *testing.T, events ...string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, e := range events {
			var id, second, resource string
			_, _ = fmt.Sscan(e, &id, &second, &resource)
			_, _ = fmt.Fprintf(w, `data: {"id":"%s","time":"2026-11-02T09:12:%sZ","kind":"acquired","resource":"%s"}`+"\n\n", id, second, resource)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func resourcesIn(stdout string) string {
	var all []string
	for line := range strings.Lines(stdout) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), "resource=")
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

func TestWhatSeveralGatewaysKeepIsMergedByTime(t *testing.T) {
	t.Parallel()
	one, other := telling(t, "A-1 01 a", "A-2 03 c"), telling(t, "B-1 02 b", "B-2 04 d")
	code, stdout, stderr := cli(t, map[string]string{"FENCEGATE_GATEWAY": one + "," + other}, "activity", "--follow=false")
	if code != exitOK || resourcesIn(stdout) != "a b c d" {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	if code, stdout, _ := cli(t, nil, "activity", "--follow=false", "--gateway", one+","+one); code != exitOK || resourcesIn(stdout) != "a c" {
		t.Errorf("one gateway by two names: %d %q", code, stdout)
	}
}

func TestAGatewayThatIsAwayDoesNotHideTheOthersEvents(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := cli(t, nil, "activity", "--follow=false", "--gateway", "http://127.0.0.1:1,"+telling(t, "A-1 01 a"))
	if code != exitUnavailable || resourcesIn(stdout) != "a" || !strings.Contains(stderr, "http://127.0.0.1:1") || !strings.Contains(stderr, "missing") {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
}

// following starts a gateway with one kept event. answer handles each request with follow=true; asked receives its
// Last-Event-ID.
func following(t *testing.T, id string, asked chan<- string, answer func(w http.ResponseWriter)) string {
	t.Helper()
	event := func(w io.Writer, id string) {
		_, _ = fmt.Fprintf(w, `data: {"id":"%s","time":"2026-11-02T09:12:01Z","kind":"acquired","resource":"%s"}`+"\n\n", id, id)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("follow") != "true" {
			event(w, id)
			return
		}
		asked <- r.Header.Get("Last-Event-ID")
		answer(w)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func unauthorized(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = io.WriteString(w, `{"code":"unauthorized","title":"Unauthorized"}`)
}

func TestEachGatewayIsFollowedFromItsLastEvent(t *testing.T) {
	t.Parallel()
	a, b := make(chan string, 1), make(chan string, 1)
	var both sync.WaitGroup
	both.Add(2)
	answer := func(w http.ResponseWriter) {
		both.Done()
		both.Wait()
		unauthorized(w)
	}
	one, other := following(t, "A-1", a, answer), following(t, "B-1", b, answer)
	code, stdout, stderr := cli(t, nil, "activity", "--gateway", one+","+other)
	if code == exitOK || resourcesIn(stdout) != "A-1 B-1" || !strings.Contains(stderr, "http://") {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	if after := <-a + " " + <-b; after != "A-1 B-1" {
		t.Errorf("asked after %s", after)
	}
}

// A balancer answers for a gateway that restarts.
func TestAGatewayThatIsBusyOrAwayIsAskedAgain(t *testing.T) {
	t.Parallel()
	a, b := make(chan string, 9), make(chan string, 9)
	ended := make(chan struct{})
	one := following(t, "A-1", a, func(w http.ResponseWriter) { // it accepts the stream, and sends nothing
		_ = http.NewResponseController(w).Flush()
		<-ended
	})
	tries := 0
	other := following(t, "B-1", b, func(w http.ResponseWriter) {
		if tries++; tries < 3 {
			w.WriteHeader([]int{http.StatusBadGateway, http.StatusTooManyRequests}[tries-1])
			return
		}
		unauthorized(w)
	})
	t.Cleanup(func() { close(ended) }) // before the servers close
	code, stdout, stderr := cli(t, nil, "activity", "--gateway", one+","+other)
	if code == exitOK || resourcesIn(stdout) != "A-1 B-1" || tries != 3 || strings.Count(stderr, "trying again") != 1 || !strings.Contains(stderr, other) {
		t.Errorf("%d %q %q after %d tries", code, stdout, stderr, tries)
	}
}

func TestAGatewayOfTwoNamesIsFollowedOnce(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 9)
	url := following(t, "A-1", asked, unauthorized)
	_, stdout, _ := cli(t, nil, "activity", "--gateway", url+","+strings.Replace(url, "127.0.0.1", "localhost", 1))
	if resourcesIn(stdout) != "A-1" || len(asked) != 1 {
		t.Errorf("%q, followed by %d", stdout, len(asked))
	}
}

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// telling is a gateway that keeps events, each "id second resource".
func telling(t *testing.T, events ...string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("follow") == "true" {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"code":"unauthorized","title":"Unauthorized","detail":"asked after `+r.Header.Get("Last-Event-ID")+`"}`)
			return
		}
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

func TestEachGatewayIsFollowedFromItsLastEvent(t *testing.T) {
	t.Parallel()
	one, other := telling(t, "A-1 01 a"), telling(t, "B-1 02 b")
	code, stdout, stderr := cli(t, nil, "activity", "--gateway", one+","+other)
	if code == exitOK || resourcesIn(stdout) != "a b" || !strings.Contains(stderr, "asked after A-1") && !strings.Contains(stderr, "asked after B-1") {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
}

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/wire"
)

func TestActivityIsPrinted(t *testing.T) {
	t.Parallel()
	const stream = ":\n\nid: X-1\nevent: refused\n" +
		`data: {"id":"X-1","time":"2026-11-02T09:12:44Z","kind":"refused","surface":"pg","code":"ZF001","login":"app","client":"10.0.0.7:5","application_name":"w\u001b[2J","resource":"orders/1001","presented":"34","recorded":"35","statement":"UPDATE","table":"public.orders"}` +
		"\n\nid: X-2\nevent: missed\n" + `data: {"id":"X-2","time":"2026-11-02T09:12:45Z","kind":"missed","missed":7}` + "\n\n"
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/v1/events" || r.Header.Get("Authorization") != "Bearer secret":
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"code":"unauthorized","title":"Unauthorized","status":401,"detail":"the bearer token is missing or wrong"}`)
		default:
			_, _ = io.WriteString(w, stream)
		}
	}))
	t.Cleanup(gateway.Close)
	vars := map[string]string{"FENCEGATE_GATEWAY": gateway.URL, "FENCEGATE_TOKEN": "secret"}
	code, stdout, stderr := cli(t, vars, "activity", "--follow=false")
	lines := strings.Split(stdout, "\n")
	want := "2026-11-02T09:12:44Z refused ZF001 pg UPDATE public.orders resource=orders/1001 token=34 fence=35 login=app client=10.0.0.7:5 app=w"
	if code != exitOK || len(lines) != 3 || !strings.HasPrefix(lines[0], want) || strings.Contains(stdout, "\x1b") ||
		lines[1] != "2026-11-02T09:12:45Z missed 7 events: the reader was too slow" {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	code, stdout, stderr = cli(t, vars, "activity", "--follow=false", "--json")
	if code != exitOK || strings.Count(stdout, "\n") != 2 || !strings.Contains(stdout, `"presented":"34"`) {
		t.Errorf("--json: %d %q %q", code, stdout, stderr)
	}
	vars["FENCEGATE_TOKEN"] = "wrong"
	if code, _, stderr := cli(t, vars, "activity"); code == exitOK || !strings.Contains(stderr, "bearer token") {
		t.Errorf("without the token: %d %q", code, stderr)
	}
}

func TestALongUserAgentIsShortened(t *testing.T) {
	t.Parallel()
	for app, want := range map[string]string{
		strings.Repeat("ä", 41): "app=" + strings.Repeat("ä", 39) + "…\n", strings.Repeat("ä", 40): "app=" + strings.Repeat("ä", 40) + "\n",
	} {
		var out strings.Builder
		if err := printEvent(&out, wire.Event{App: app}); err != nil || !strings.HasSuffix(out.String(), want) {
			t.Errorf("%q, %v", out.String(), err)
		}
	}
}

// A broken stream resumes after the last event.
func TestActivityGoesOnAfterAnInterruption(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 10)
	first := make(chan struct{}, 1)
	first <- struct{}{}
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Last-Event-ID")
		select {
		case <-first:
			_, _ = io.WriteString(w, `data: {"id":"X-1","time":"2026-11-02T09:12:44Z","kind":"acquired","resource":"r"}`+"\n\n")
		default:
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"code":"unauthorized","title":"Unauthorized","status":401,"detail":"over"}`)
		}
	}))
	t.Cleanup(gateway.Close)
	code, stdout, stderr := cli(t, map[string]string{"FENCEGATE_GATEWAY": gateway.URL}, "activity")
	if code == exitOK || !strings.Contains(stdout, "acquired resource=r") || !strings.Contains(stderr, "trying again") {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	if before, after := <-asked, <-asked; before != "" || after != "X-1" {
		t.Errorf("asked from %q, then from %q", before, after)
	}
}

func TestATableIsLinesWhereNoTerminalIs(t *testing.T) {
	t.Parallel()
	vars, _ := lister(t)
	code, stdout, stderr := cli(t, vars, "activity", "--table", "--follow=false", "orders/")
	want := "held orders/1 token=7 by=w\\x1b[2J left=1.5s waiters=2\n" +
		"held orders/2 token=8 by=x left=- waiters=0\n" +
		"held orders/3 token=9 by=y left=never ends waiters=0\n" +
		"2026-11-02T09:12:44Z expired resource=orders/1 token=7\n" // sweeps concern no resource, and are not shown
	if code != exitOK || stdout != want {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
}

// Text that others chose stays in its line and is escaped, and the screen is no larger than the terminal.
func TestThePictureFitsTheTerminal(t *testing.T) {
	t.Parallel()
	w := &activityTable{latest: []wire.Event{{Kind: wire.EventRefused, Resource: "r\x1b[2J"}, {Kind: wire.EventAcquired, Resource: "last"}}}
	var held []wire.Listed
	for range 50 {
		one := wire.Listed{State: wire.StateLive}
		one.Resource, one.Holder = "orders/1", "x\x1b]0;title\a\nnext"
		held = append(held, one)
	}
	two := int64(2)
	status := wire.Status{Version: "v1", HeldLeases: &two, Lock: wire.LockStatus{Kind: "redis", State: "ok", Nodes: []wire.NodeStatus{{Name: "n1", State: "quarantined", QuarantineMS: 1500}}}}
	for _, height := range []int{1, 5, 10, 24} {
		text := string(w.draw(status, held, true, nil, 60, height))
		lines := strings.Split(text, "\r\n")
		if len(lines) > height || strings.Contains(text, "\x1b]") || strings.Contains(text, "\x1b[2J") {
			t.Errorf("%d rows: %d lines %q", height, len(lines), text)
		}
		for _, line := range lines {
			if plain := strings.NewReplacer("\x1b[H", "", "\x1b[K", "", "\x1b[J", "").Replace(line); len([]rune(plain)) > 60 {
				t.Errorf("%q is too wide", plain)
			}
		}
		if height == 24 && (!strings.Contains(text, "acquired resource=last") || !strings.Contains(text, "more, and others")) {
			t.Errorf("%q", text)
		}
	}
	if text := string(w.draw(status, held, true, nil, 0, 0)); !strings.Contains(text, "acquired resource=last") {
		t.Errorf("on a terminal that does not know its size: %q", text)
	}
	if text := summary(status); !strings.Contains(text, "n1 quarantined 2s") || !strings.Contains(text, "held here 2") || strings.Contains(text, "waiting") {
		t.Error(text)
	}
}

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// lister is a gateway with four resources, on two pages.
func lister(t *testing.T) (vars map[string]string, asked *[]string) {
	t.Helper()
	asked = new([]string)
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.URL.RequestURI())
		switch {
		case r.Header.Get("Authorization") == "Bearer blind":
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"code":"denied","title":"Denied","status":403,"detail":"blind has no right to inspect"}`)
		case r.URL.Path == "/v1/resources" && r.URL.Query().Get("after") == "":
			_, _ = io.WriteString(w, `{"resources":[{"resource":"orders/1","token":"7","holder":"w\u001b[2J","state":"live","left_ms":1500,"waiters":2},{"resource":"orders/2","token":"8","holder":"x","state":"expired","left_ms":null,"waiters":0}],"next":"orders/2"}`)
		case r.URL.Path == "/v1/resources":
			_, _ = io.WriteString(w, `{"resources":[{"resource":"orders/3","token":"9","holder":"y","state":"live","left_ms":null,"waiters":0}],"next":null}`)
		case r.URL.EscapedPath() == "/v1/resources/orders/1":
			_, _ = io.WriteString(w, `{"resource":"orders/1","token":"7","holder":"w","armed_at":"2026-11-02T09:12:44Z","ended_at":null,"locked":true,"lock":{"ttl_ms":1500,"waiters":1}}`)
		case r.URL.EscapedPath() == "/v1/resources/orders/2":
			_, _ = io.WriteString(w, `{"resource":"orders/2","token":"8","holder":"x","armed_at":"2026-11-02T09:12:44Z","ended_at":null,"locked":false,"lock":{"waiters":0}}`)
		case r.URL.EscapedPath() == "/v1/resources/orders/3":
			_, _ = io.WriteString(w, `{"resource":"orders/3","token":"8","holder":"x","armed_at":"2026-11-02T09:12:44Z","ended_at":"2026-11-02T09:12:45Z","locked":null,"lock":null}`)
		case r.URL.Path == "/v1/events":
			_, _ = io.WriteString(w, `data: {"id":"X-1","time":"2026-11-02T09:12:44Z","kind":"swept","deleted":3}`+"\n\n"+`data: {"id":"X-2","time":"2026-11-02T09:12:44Z","kind":"expired","resource":"orders/1","presented":"7"}`+"\n\n")
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"not_found","title":"Not found","status":404,"detail":"never acquired"}`)
		}
	}))
	t.Cleanup(gateway.Close)
	return map[string]string{"FENCEGATE_GATEWAY": gateway.URL}, asked
}

func TestResourcesAreListedPageByPage(t *testing.T) {
	t.Parallel()
	vars, asked := lister(t)
	code, stdout, stderr := cli(t, vars, "resources", "ls", "orders/", "--held")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != exitOK || len(lines) != 4 || strings.Join(strings.Fields(lines[1]), " ") != `orders/1 live 7 1.5s 2 w\x1b[2J` ||
		strings.Join(strings.Fields(lines[2]), " ") != "orders/2 expired 8 - 0 x" || !strings.Contains(lines[3], "never ends") {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
	want := "/v1/resources?held=true&limit=500&prefix=orders%2F, /v1/resources?after=orders%2F2&held=true&limit=500&prefix=orders%2F"
	if got := strings.Join(*asked, ", "); got != want {
		t.Errorf("asked %s; want %s", got, want)
	}
	code, stdout, stderr = cli(t, vars, "resources", "ls", "--limit", "2")
	if code != exitOK || strings.Count(stdout, "\n") != 3 || !strings.Contains(stderr, `--after "orders/2"`) {
		t.Errorf("the first two: %d %q %q", code, stdout, stderr)
	}
	code, stdout, _ = cli(t, vars, "resources", "ls", "--json")
	if code != exitOK || strings.Count(stdout, "\n") != 3 || !strings.Contains(stdout, `"state":"expired"`) {
		t.Errorf("--json: %d %q", code, stdout)
	}
	if code, _, stderr := cli(t, vars, "resources", "ls", "--limit", "0"); code != exitUsage {
		t.Errorf("a limit of none: %d %q", code, stderr)
	}
	vars["FENCEGATE_TOKEN"] = "blind"
	for _, args := range [][]string{{"resources", "ls"}, {"activity", "--table"}, {"activity"}} {
		if code, stdout, stderr := cli(t, vars, args...); code != exitForbidden || !strings.Contains(stderr, "no right to inspect") {
			t.Errorf("%v without the right: %d %q %q", args, code, stdout, stderr)
		}
	}
}

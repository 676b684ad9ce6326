package api_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// browser acts like a browser on the live page.
type browser struct {
	t    *testing.T
	base string
	http *http.Client
}

func newBrowser(t *testing.T, way http.RoundTripper) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &browser{t, "http://127.0.0.1:7070", &http.Client{Jar: jar, Transport: way}}
}

// do sends a request, and posts form if it is not nil.
func (b *browser) do(path string, form url.Values, headers ...string) (status int, text string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.base+path, http.NoBody)
	if form != nil {
		req, err = http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.base+path, strings.NewReader(form.Encode()))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", b.base)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if policy := resp.Header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		b.t.Errorf("%s has the policy %q", path, policy)
	}
	return resp.StatusCode, string(body)
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// csrf returns the CSRF token in the forms of a page.
func (b *browser) csrf(path string) string {
	b.t.Helper()
	_, text := b.do(path, nil)
	found := csrfField.FindStringSubmatch(text)
	if found == nil {
		b.t.Fatalf("%s has no form: %s", path, text)
	}
	return found[1]
}

func (b *browser) login(token string) (status int, text string) {
	b.t.Helper()
	return b.do("/page/login", url.Values{"token": {token}})
}

// stream reads the page's event stream until it ends.
func (b *browser) stream(ctx context.Context) (lines <-chan string, status int) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+"/page/events", http.NoBody)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	read := make(chan string, 1000)
	go func() {
		defer close(read)
		defer func() { _ = resp.Body.Close() }()
		for scan := bufio.NewScanner(resp.Body); scan.Scan(); {
			read <- scan.Text()
		}
	}()
	return read, resp.StatusCode
}

func define(name string, rules ...access.Rule) access.Definition {
	return access.Definition{Name: name, Tokens: []access.Digest{access.DigestOf("token of " + name)}, Rules: rules}
}

// paged starts a gateway with two principals: one sees only orders, one may revoke.
func paged(t *testing.T) (way http.RoundTripper, shelf *shelf, all *access.Principals, feed *activity.Feed) {
	t.Helper()
	all, err := access.New([]access.Definition{
		define("orders", access.Rule{Resources: "orders/*", Verbs: []access.Verb{access.Inspect}}),
		define("ops", access.Rule{Resources: "*", Verbs: []access.Verb{access.Inspect, access.Revoke}}),
		define("blind", access.Rule{Resources: "*", Verbs: []access.Verb{access.Acquire}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	feed, on := withEvents(t, 100)
	shelf, _ = newShelf(t)
	shelf.ttls["invoices/1"] = time.Minute
	shelf.all[3].Holder = `<script>alert("x")</script>`
	s := newServer(t, shelf.fakes, on, func(c *api.Config) {
		c.Leases, c.Fences, c.Principals = onShelf{leases{shelf.fakes}, shelf}, shelf, all
	})
	return transportTo(t, s), shelf, all, feed
}

func TestThePageShowsWhatThePrincipalMayInspect(t *testing.T) {
	t.Parallel()
	way, _, _, feed := paged(t)
	feed.Tell(activity.Event{Kind: wire.EventRefused, Code: "ZF001", Resource: "orders/3", Presented: 33, Recorded: 34})
	feed.Tell(activity.Event{Kind: wire.EventRefused, Code: "ZF001", Resource: "invoices/1", Presented: 1, Recorded: 2})
	b := newBrowser(t, way)
	if status, text := b.do("/", nil); status != http.StatusUnauthorized || strings.Contains(text, "orders/") || !strings.Contains(text, `type="password"`) {
		t.Errorf("before the log-in: %d %s", status, text)
	}
	if status, _ := b.login("token of nobody"); status != http.StatusUnauthorized {
		t.Errorf("a wrong token: %d", status)
	}
	status, text := b.login("token of orders")
	if status != http.StatusOK || !strings.Contains(text, "orders/3") || !strings.Contains(text, "refused ZF001") || !strings.Contains(text, "Logged in as orders") {
		t.Errorf("%d %s", status, text)
	}
	for _, secret := range []string{"invoices", "<script>alert", "token of", ">Revoke"} {
		if strings.Contains(text, secret) {
			t.Errorf("the page has %q: %s", secret, text)
		}
	}
	if _, text := b.do("/?prefix=invoices/", nil); !strings.Contains(text, "is held") || strings.Contains(text, `data-resource`) {
		t.Errorf("a search for others': %s", text)
	}
	if status, _ := b.do("/page/revoke?resource=orders/3", nil); status != http.StatusForbidden {
		t.Errorf("revoking without the right: %d", status)
	}
	ops := newBrowser(t, way)
	if _, text := ops.login("token of ops"); !strings.Contains(text, "invoices/1") || !strings.Contains(text, `aria-label="Revoke orders/3"`) {
		t.Errorf("ops: %s", text)
	}
	blind := newBrowser(t, way)
	if status, text := blind.login("token of blind"); status != http.StatusForbidden || !strings.Contains(text, "no right to inspect") || !strings.Contains(text, `type="password"`) {
		t.Errorf("without the right to inspect: %d %s", status, text)
	}
	if status, text := blind.do("/", nil); status != http.StatusUnauthorized {
		t.Errorf("without the right to inspect, again: %d %s", status, text)
	}
}

func TestRevokingOnThePageTakesTheFormOfTheHolderThatWasSeen(t *testing.T) {
	t.Parallel()
	way, shelf, _, _ := paged(t)
	b := newBrowser(t, way)
	b.login("token of ops")
	const ask = "/page/revoke?resource=orders%2F1001"
	_, text := b.do(ask, nil)
	for _, named := range []string{"orders/1001", "worker-a", "34"} {
		if !strings.Contains(text, named) {
			t.Errorf("the confirmation does not name %s: %s", named, text)
		}
	}
	good := url.Values{"csrf": {b.csrf(ask)}, "resource": {"orders/1001"}, "token": {"34"}}
	with := func(name, value string) url.Values {
		form := url.Values{}
		maps.Copy(form, good)
		form.Set(name, value)
		return form
	}
	for name, c := range map[string]struct {
		form    url.Values
		headers []string
	}{
		"another form's word":       {with("csrf", "x"), nil},
		"another site":              {good, []string{"Origin", "http://evil.example"}},
		"no origin":                 {good, []string{"Origin", "null"}},
		"what a browser says of it": {good, []string{"Sec-Fetch-Site", "cross-site"}},
	} {
		if status, text := b.do("/page/revoke", c.form, c.headers...); status != http.StatusForbidden {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	if _, text := b.do("/page/revoke", with("token", "33")); !strings.Contains(text, "Another acquired it since") {
		t.Errorf("the holder changed: %s", text)
	}
	if len(shelf.revoked) != 0 {
		t.Fatalf("revoked %v", shelf.revoked)
	}
	shelf.overtaken = 36 // after the page has compared the tokens
	if _, text := b.do("/page/revoke", good); !strings.Contains(text, "Another acquired it since") || !strings.Contains(text, "Revoke token 36") || len(shelf.revoked) != 0 {
		t.Errorf("another acquired it at the last moment: revoked %v; %s", shelf.revoked, text)
	}
	shelf.overtaken, shelf.record.Token = 0, 34
	if status, _ := b.do("/page/revoke", good); status != http.StatusOK || strings.Join(shelf.revoked, " ") != "orders/1001 revoked by ops, on the page" {
		t.Errorf("%d, revoked %v", status, shelf.revoked)
	}
}

// A stream ends with the log-out, and with the principal.
func TestAViewEndsWithItsSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		way, _, all, feed := paged(t)
		watching := func(name string) (*browser, <-chan string) {
			b := newBrowser(t, way)
			b.login("token of " + name)
			lines, status := b.stream(t.Context())
			if status != http.StatusOK {
				t.Fatalf("%s: %d", name, status)
			}
			for line := range lines {
				if line == "event: now" {
					return b, lines
				}
			}
			t.Fatalf("%s: the stream ended at once", name)
			return nil, nil
		}
		leaves, left := watching("orders")
		_, changed := watching("ops")
		feed.Tell(activity.Event{Kind: wire.EventRefused, Resource: "invoices/9"})
		feed.Tell(activity.Event{Kind: wire.EventRefused, Resource: "orders/9"})
		for line := range left {
			if strings.Contains(line, "invoices") {
				t.Errorf("others' event: %s", line)
			}
			if strings.Contains(line, "orders/9") {
				break
			}
		}
		atOnce := func(lines <-chan string, what string) {
			began := time.Now()
			for range lines { // until it ends
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("%s: the stream ended after %v", what, took)
			}
		}
		leaves.do("/page/logout", url.Values{"csrf": {leaves.csrf("/")}})
		atOnce(left, "the log-out")
		if _, status := leaves.stream(t.Context()); status != http.StatusUnauthorized {
			t.Errorf("after the log-out: %d", status)
		}
		if _, err := all.Replace([]access.Definition{define("orders", access.Rule{Resources: "orders/*", Verbs: []access.Verb{access.Inspect}})}); err != nil {
			t.Fatal(err)
		}
		atOnce(changed, "the principal has gone")
	})
}

// Without tokens the page is served only under loopback names: a web page could reach it by a name of its own.
func TestThePageWithoutTokensIsForLoopbackNames(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, transportTo(t, newServer(t, newFakes())))
	if status, text := b.do("/", nil); status != http.StatusOK || !strings.Contains(text, "Held now") {
		t.Errorf("%d %s", status, text)
	}
	for _, path := range []string{"/", "/page/revoke?resource=orders/1001", "/page/app.js"} {
		if status, _ := b.do(path, nil, "Host", "evil.example"); status != http.StatusBadRequest {
			t.Errorf("%s under another name: %d", path, status)
		}
	}
	if status, _ := b.do("/page/revoke", url.Values{"csrf": {"guessed"}, "resource": {"orders/1001"}, "token": {"34"}}); status != http.StatusForbidden {
		t.Errorf("a form without its word: %d", status)
	}
}

func TestTheCookieIsBoundToItsHostOverTLS(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes(), func(c *api.Config) { c.BearerToken = "correct horse" })
	for _, overTLS := range []bool{true, false} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/page/login", strings.NewReader("token=correct+horse"))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", "https://"+req.Host)
		name := "fencegate"
		if overTLS {
			req.TLS, name = &tls.ConnectionState{}, "__Host-fencegate"
		}
		rec := httptest.NewRecorder()
		s.Handler().ServeHTTP(rec, req)
		cookies := rec.Result().Cookies()
		if len(cookies) != 1 {
			t.Fatalf("over TLS %v: %d, %v", overTLS, rec.Code, cookies)
		}
		c := cookies[0]
		if c.Name != name || c.Secure != overTLS || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" {
			t.Errorf("over TLS %v: %+v", overTLS, c)
		}
	}
}

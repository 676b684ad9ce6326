//go:build unix

package s3_test

import (
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

func principal(name string, verbs ...access.Verb) access.Definition {
	d := access.Definition{Name: name}
	if !strings.HasPrefix(name, "s3:") {
		d.Tokens = []access.Digest{access.DigestOf(name)}
	}
	for _, v := range verbs {
		d.Rules = append(d.Rules, access.Rule{Resources: "*", Verbs: []access.Verb{v}})
	}
	return d
}

// The current rights of their principal bound credentials, not the rights at their issue.
func TestCredentialsAreWorthWhatTheirPrincipalMayNow(t *testing.T) {
	t.Parallel()
	all, err := access.New([]access.Definition{principal("worker", access.Acquire, access.S3Read), principal("s3:"+rootAccess, access.S3Read, access.Buckets)})
	if err != nil {
		t.Fatal(err)
	}
	w := setup(t, func(c *config) { c.Rights = all })
	w.bucket()
	w.arm("orders/1001", 5)
	of := func(principal string) credentials.Credentials {
		c, err := w.keys.IssueTo(principal, "orders/1001", 5, time.Now().Add(time.Hour), 0)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	root := credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}
	expect := func(when string, c credentials.Credentials, method, path string, want int) {
		t.Helper()
		res, text := w.send(raw{creds: c, method: method, path: path})
		if res.StatusCode != want || want == 403 && !strings.Contains(text, "AccessDenied") {
			t.Errorf("%s: %s %s: %d %s; want %d", when, method, path, res.StatusCode, text, want)
		}
	}
	replace := func(d ...access.Definition) {
		t.Helper()
		if _, err := all.Replace(d); err != nil {
			t.Fatal(err)
		}
	}
	expect("a worker", of("worker"), "PUT", "/orders/1001/a", 200)
	expect("a worker", of("worker"), "GET", "/orders/1002/none", 404)
	expect("nobody by name", of(""), "PUT", "/orders/1001/b", 403)
	expect("a stranger", of("stranger"), "PUT", "/orders/1001/b", 403)
	expect("the port's key", root, "GET", "/orders/1001/a", 200)
	expect("the port's key", root, "PUT", "/more", 200)

	replace(principal("worker", access.Acquire), principal("s3:"+rootAccess, access.S3Read))
	expect("without s3-read", of("worker"), "PUT", "/orders/1001/b", 200)
	expect("without s3-read", of("worker"), "GET", "/orders/1001/a", 200)
	expect("without s3-read", of("worker"), "GET", "/orders/1002/none", 403)
	expect("without buckets", root, "PUT", "/evenmore", 403)
	expect("without buckets", root, "GET", "/orders/1001/a", 200)

	replace(principal("worker"))
	if _, text := w.send(raw{creds: of("worker"), method: "DELETE", path: "/orders/1001/a"}); !strings.Contains(text, "an earlier attempt of the same request may have") {
		t.Errorf("what was done before is denied: %s", text)
	}
	for _, method := range []string{"PUT", "GET", "DELETE"} {
		expect("without acquire", of("worker"), method, "/orders/1001/a", 403)
	}
	expect("the port's key, which is nobody's", root, "GET", "/orders/1001/a", 403)
	if n := w.count("SELECT count(*) FROM objects.pointers"); n != 2 {
		t.Errorf("%d objects; want the two that were allowed", n)
	}
}

// Denials are logged at a limited rate: a client that retries without a pause does not fill the log.
func TestADenialIsWrittenDownNowAndThen(t *testing.T) {
	t.Parallel()
	all, err := access.New([]access.Definition{principal("worker"), principal("reader", access.Acquire)})
	if err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	w := setup(t, func(c *config) {
		c.Rights, c.Logger = all, slog.New(slog.NewTextHandler(log, nil))
	})
	w.bucket()
	w.arm("orders/1001", 5)
	began, ids := time.Now(), map[string]string{}
	for _, principal := range []string{"worker", "reader"} {
		c, err := w.keys.IssueTo(principal, "orders/1001", 5, time.Now().Add(time.Hour), 0)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			res, _ := w.send(raw{creds: c, method: "GET", path: "/orders/1002/a"})
			if res.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %d", principal, res.StatusCode)
			}
			if ids[principal] == "" { // of the logged denial
				ids[principal] = res.Header.Get("X-Amz-Request-Id")
			}
		}
	}
	most := int(time.Since(began)/time.Second) + 1 // allows for a busy machine
	for _, says := range []string{
		"verb=acquire resource=orders/1001 operation=GetObject suppressed_before=0 request_id=" + ids["worker"] + " audit.principal=worker audit.client=127.0.0.1:",
		`verb=s3-read resource="" operation=GetObject suppressed_before=0 request_id=` + ids["reader"] + ` audit.principal=reader audit.client=127.0.0.1:`,
	} {
		if !strings.Contains(log.String(), says) {
			t.Errorf("no %s in %s", says, log.String())
		}
	}
	if n := strings.Count(log.String(), "a request was denied"); n > 2*most {
		t.Errorf("%d lines in %d s", n, most)
	}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

//go:build unix

package s3_test

import (
	"cmp"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// routed is a server with something that each route could change: an object, an upload, and an empty bucket that can be
// deleted.
type routed struct {
	*world

	upload string
	signer map[string]credentials.Credentials
}

func routesIn(t *testing.T) routed {
	t.Helper()
	w := setup(t)
	bucket := w.bucket()
	if _, err := w.srv.Catalog().EnsureBucket(t.Context(), "empty", objects.PrefixRule(1)); err != nil {
		t.Fatal(err)
	}
	put(t, w.lease("orders/1001", 5), bucket, invoice, "data")
	m := begin(t, w.holder("orders/1001", 5), bucket, "")
	root := credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}
	return routed{w, *m.id, map[string]credentials.Credentials{"root": root, "lease": w.issue("orders/1001", 5)}}
}

// path replaces the placeholders in "/BUCKET/KEY?uploadId" by existing names.
func (w routed) path(pattern string) string {
	path, query, _ := strings.Cut(pattern, "?")
	if path == "/BUCKET" {
		path = "/empty"
	}
	path = strings.Replace(path, "/BUCKET/KEY", "/orders/"+invoice, 1)
	path = strings.Replace(path, "/BUCKET/", "/orders/", 1)
	if query == "" {
		return path
	}
	values := url.Values{}
	for param := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(param, "=")
		values.Set(name, cmp.Or(value, map[string]string{"uploadId": w.upload, "partNumber": "1", "id": "1"}[name]))
	}
	return path + "?" + values.Encode()
}

// ask returns a request that its route would carry out.
func (w routed) ask(method, pattern, header string, creds credentials.Credentials) raw {
	data, sent := "", map[string]string{}
	if method == http.MethodPut || method == http.MethodPost {
		_, query, _ := strings.Cut(pattern, "?")
		sub, _, _ := strings.Cut(query, "&")
		data = documentFor("?" + sub + "=")
		sent["Content-MD5"] = md5Of(data)
	}
	if header != "" {
		sent[header] = "orders/" + invoice
		data = ""
		delete(sent, "Content-MD5")
	}
	return raw{creds: creds, method: method, path: w.path(pattern), header: sent, body: body(data), size: int64(len(data))}
}

func patternOf(r s3.Route) string {
	pattern := "/"
	switch {
	case r.Bucket:
		pattern = "/BUCKET"
	case r.Object:
		pattern = "/BUCKET/KEY"
	}
	query := strings.Trim(r.Sub+"&"+r.And, "&")
	return pattern + strings.TrimSuffix("?"+query, "?")
}

// upstream returns versitygw's list of routes, from the version in go.mod.
func upstream(t *testing.T) []string {
	t.Helper()
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`github\.com/versity/versitygw (v\S+)`).FindSubmatch(mod)
	if version == nil {
		t.Fatal("go.mod does not have versitygw")
	}
	list, err := os.ReadFile(filepath.Join("testdata", "versitygw-"+string(version[1])+"-routes.txt"))
	if err != nil {
		t.Fatalf("versitygw has another version: compare its routes with ours, and renew the list: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(string(list)), "\n")
	return lines[1:]
}

// A route of versitygw that our table lacks, or marks as not served, cannot be reached in another way.
func TestRoutesOfVersitygwThatAreNotServedChangeNothing(t *testing.T) {
	t.Parallel()
	w := routesIn(t)
	ours := map[string]bool{}
	for _, r := range s3.Routes() {
		ours[strings.TrimSpace(r.Method+" "+patternOf(r)+" "+r.Header)] = r.Served
	}
	tried := 0
	for _, line := range upstream(t) {
		served := ours[line]
		if _, isAdmin := adminRoutes[line]; isAdmin && strings.HasPrefix(line, "OPTIONS") {
			served = true // the preflight of a bucket, or an object, with that name
		}
		if served {
			continue
		}
		tried++
		parts := strings.Fields(line + " ")
		w.mustRefuse(parts[0], parts[1], strings.Join(parts[2:], ""))
	}
	if tried < 30 {
		t.Errorf("only %d routes were tried", tried)
	}
}

// adminRoutes are versitygw's routes for its own accounts.
var adminRoutes = func() map[string]struct{} {
	all := map[string]struct{}{}
	for _, path := range []string{"/create-user", "/delete-user", "/update-user", "/list-users", "/change-bucket-owner", "/list-buckets", "/BUCKET/create"} {
		all["PATCH "+path], all["OPTIONS "+path] = struct{}{}, struct{}{}
	}
	return all
}()

// A sub-resource never falls through to the operation on its bucket or object.
func TestSubresourcesWithoutARouteAreNotImplementedAndChangeNothing(t *testing.T) {
	t.Parallel()
	w := routesIn(t)
	all := s3.Subresources()
	for _, line := range upstream(t) {
		_, query, _ := strings.Cut(strings.Fields(line)[1], "?")
		if sub, _, _ := strings.Cut(query, "&"); sub != "" && !strings.Contains(sub, "=") && sub != "partNumber" {
			all = append(all, sub)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	has := map[string]bool{}
	for _, r := range s3.Routes() {
		pattern, _, _ := strings.Cut(patternOf(r), "?")
		has[r.Method+pattern+"?"+r.Sub] = true
	}
	for _, method := range []string{"GET", "HEAD", "PUT", "POST", "DELETE"} {
		for _, path := range []string{"/", "/BUCKET", "/BUCKET/KEY"} {
			for _, sub := range all {
				if has[method+path+"?"+sub] {
					continue
				}
				w.mustRefuse(method, path+"?"+sub, "")
			}
			if method == "PUT" || method == "POST" || method == "DELETE" {
				w.mustRefuse(method, path+"?something", "")
			}
		}
	}
}

func TestAParameterWithoutANameIsRefusedLikeAnUnknownOne(t *testing.T) {
	t.Parallel()
	w := routesIn(t)
	for _, method := range []string{"PUT", "POST", "DELETE"} {
		for _, path := range []string{"/", "/BUCKET", "/BUCKET/KEY"} {
			res, text := w.send(w.ask(method, path+"?=x", "", w.signer["root"]))
			if res.StatusCode != http.StatusNotImplemented {
				t.Errorf("%s %s?=x: got %d %.200s", method, path, res.StatusCode, text)
			}
		}
	}
}

// mustRefuse sends the request as root and as a holder of a lease, and wants it refused.
func (w routed) mustRefuse(method, pattern, header string) {
	w.t.Helper()
	before := w.state()
	for name, creds := range w.signer {
		res, text := w.send(w.ask(method, pattern, header, creds))
		if res.StatusCode < 300 {
			w.t.Errorf("%s %s %s as %s: got %d %.200s", method, pattern, header, name, res.StatusCode, text)
		}
		if after := w.state(); after != before {
			w.t.Fatalf("%s %s %s as %s: something changed:\n%s\n%s", method, pattern, header, name, before, after)
		}
	}
}

// No route answers a request that is unsigned, signed with another secret, or signed too long ago, in its headers or in
// its URL.
func TestEveryRouteRefusesUnsignedForgedAndExpiredRequests(t *testing.T) {
	t.Parallel()
	w := routesIn(t)
	before, tried := w.state(), 0
	for _, r := range s3.Routes() {
		if !r.Signed {
			continue
		}
		tried++
		for name, creds := range w.signer {
			for how, req := range w.illSigned(r, creds) {
				res, err := httpClient(t).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				text := readAll(t, res.Body)
				// A list, of deletions or parts, must be readable before it can be the repetition of one.
				known := notAllowedIn(text) || strings.HasPrefix(how, "expired credentials") && unreadableIn(text)
				if res.StatusCode < 400 || res.StatusCode >= 500 || !known && r.Method != http.MethodHead {
					t.Errorf("%s %s %s, %s %s: got %d %.300s", r.Method, patternOf(r), r.Header, how, name, res.StatusCode, text)
				}
			}
		}
		if after := w.state(); after != before {
			t.Fatalf("%s %s %s: something changed:\n%s\n%s", r.Method, patternOf(r), r.Header, before, after)
		}
	}
	if tried < 80 {
		t.Errorf("only %d routes were tried", tried)
	}
	w.mustTakeWellSigned()
}

// mustTakeWellSigned sends the same requests with valid signatures, to show that only the signature was refused.
func (w routed) mustTakeWellSigned() {
	w.t.Helper()
	for _, r := range s3.Routes() {
		ask := func() raw { return w.ask(r.Method, patternOf(r), r.Header, w.signer["root"]) }
		for how, req := range map[string]*http.Request{"headers": w.request(ask()), "URL": w.presign(ask())} {
			res, err := httpClient(w.t).Do(req)
			if err != nil {
				w.t.Fatal(err)
			}
			if text := readAll(w.t, res.Body); r.Signed && notAllowedIn(text) {
				w.t.Errorf("%s %s %s, signed by its %s: got %d %.300s", r.Method, patternOf(r), r.Header, how, res.StatusCode, text)
			}
		}
	}
}

// notAllowedIn reports whether a document refuses every sender.
func notAllowedIn(text string) bool {
	return regexp.MustCompile(`<Code>(AccessDenied|SignatureDoesNotMatch|RequestTimeTooSkewed|ExpiredToken)</Code>`).MatchString(text)
}

// unreadableIn reports whether a document refuses the form of a request.
func unreadableIn(text string) bool {
	return regexp.MustCompile(`<Code>(InvalidRequest|MalformedXML)</Code>`).MatchString(text)
}

// illSigned returns requests for the route, by what is wrong with their signature.
func (w routed) illSigned(r s3.Route, creds credentials.Credentials) map[string]*http.Request {
	forged := creds
	forged.SecretAccessKey = "another"
	ask := func(c credentials.Credentials, at time.Time) raw {
		q := w.ask(r.Method, patternOf(r), r.Header, c)
		q.at = at
		return q
	}
	now, before := time.Now(), time.Now().Add(-time.Hour)
	unsigned := w.request(ask(creds, now))
	unsigned.Header.Del("Authorization")
	all := map[string]*http.Request{
		"unsigned": unsigned, "forged": w.request(ask(forged, now)), "signed an hour ago": w.request(ask(creds, before)),
		"forged URL": w.presign(ask(forged, now)), "URL that expired": w.presign(ask(creds, before)),
	}
	if creds.SessionToken != "" {
		expired, err := w.keys.Issue("orders/1001", 5, before, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		all["expired credentials"], all["expired credentials' URL"] = w.request(ask(expired, now)), w.presign(ask(expired, now))
	}
	return all
}

// presign signs the request in its URL, which is valid for a minute.
func (w routed) presign(r raw) *http.Request {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), r.method, w.url("%s", r.path), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	query := req.URL.Query()
	query.Set("X-Amz-Expires", "60")
	req.URL.RawQuery = query.Encode()
	if r.at.IsZero() {
		r.at = time.Now()
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	signed, header, err := v4.NewSigner().PresignHTTP(w.t.Context(), aws.Credentials{
		AccessKeyID: r.creds.AccessKeyID, SecretAccessKey: r.creds.SecretAccessKey, SessionToken: r.creds.SessionToken,
	}, req, "UNSIGNED-PAYLOAD", "s3", "us-east-1", r.at, func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true; o.DisableHeaderHoisting = true })
	if err != nil {
		w.t.Fatal(err)
	}
	if req, err = http.NewRequestWithContext(w.t.Context(), r.method, signed, r.body); err != nil {
		w.t.Fatal(err)
	}
	req.Header, req.ContentLength = header, r.size
	req.Header.Del("Host")
	return req
}

// A route that needs no signature does nothing.
func TestRoutesWithoutASignatureServeNothing(t *testing.T) {
	t.Parallel()
	w := routesIn(t)
	before := w.state()
	for _, r := range s3.Routes() {
		if r.Signed {
			continue
		}
		q := w.ask(r.Method, patternOf(r), r.Header, w.signer["root"])
		req := w.request(q)
		req.Header.Del("Authorization")
		res, err := httpClient(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text := readAll(t, res.Body)
		if res.StatusCode < 400 && (r.Method != http.MethodOptions || text != "") {
			t.Errorf("%s %s %s: got %d %.200s", r.Method, patternOf(r), r.Header, res.StatusCode, text)
		}
	}
	if after := w.state(); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}
}

package api_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/internal/certs"
)

// asked returns the server's answer to a client with a certificate and perhaps a token; 0: the handshake failed.
func asked(t *testing.T, srv *httptest.Server, cert *certs.Pair, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	transport, _ := srv.Client().Transport.(*http.Transport)
	transport = transport.Clone()
	transport.DisableKeepAlives = true
	if cert != nil {
		transport.TLSClientConfig.Certificates = []tls.Certificate{cert.TLS}
	}
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func overTLS(t *testing.T, s *api.Server, authority certs.Pair) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(s.Handler())
	srv.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: authority.Pool(), MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

func certified(t *testing.T, rules ...access.Rule) *access.Principals {
	t.Helper()
	all, err := access.New([]access.Definition{
		{Name: "me", Certificates: []string{"dns:me.example", "uri:spiffe://x/me"}, Tokens: []access.Digest{access.DigestOf("me")}, Rules: rules},
		{Name: "another", Certificates: []string{"email:another@x.example"}, Tokens: []access.Digest{access.DigestOf("another")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestACertificateIsWhoseAlternativeNameItHas(t *testing.T) {
	t.Parallel()
	ours, theirs := certs.New(certs.Authority("one name")), certs.New(certs.Authority("one name")) // a client shows no certificate of another name
	all := certified(t, access.Rule{Resources: "*", Verbs: []access.Verb{access.Inspect}})
	srv := overTLS(t, newServer(t, newFakes(), func(c *api.Config) { c.Principals = all }), ours)
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	uris := []*url.URL{{Scheme: "spiffe", Host: "x", Path: "/me"}}
	spiffe := &x509.Certificate{URIs: uris, ExtKeyUsage: client}
	for name, c := range map[string]struct {
		cert    certs.Pair
		headers []string
		want    int
	}{
		"a name":                               {ours.Sign(&x509.Certificate{DNSNames: []string{"ME.example", "other.example"}, ExtKeyUsage: client}), nil, 200},
		"a URI":                                {ours.Sign(spiffe), nil, 200},
		"no right":                             {ours.Sign(&x509.Certificate{EmailAddresses: []string{"another@x.example"}, ExtKeyUsage: client}), nil, 403},
		"nobody's name":                        {ours.Sign(certs.For("you.example")), nil, 401},
		"a common name":                        {ours.Sign(&x509.Certificate{Subject: pkix.Name{CommonName: "me.example"}, ExtKeyUsage: client}), nil, 401},
		"of another kind":                      {ours.Sign(&x509.Certificate{EmailAddresses: []string{"me.example"}, ExtKeyUsage: client}), nil, 401},
		"two principals' names":                {ours.Sign(&x509.Certificate{DNSNames: []string{"me.example"}, EmailAddresses: []string{"another@x.example"}, ExtKeyUsage: client}), nil, 401},
		"another's token":                      {ours.Sign(spiffe), []string{"Authorization", "Bearer another"}, 401},
		"its own token":                        {ours.Sign(spiffe), []string{"Authorization", "Bearer me"}, 200},
		"a token, and a certificate of nobody": {ours.Sign(certs.For("you.example")), []string{"Authorization", "Bearer me"}, 200},
		"a wrong token":                        {ours.Sign(spiffe), []string{"Authorization", "Bearer x"}, 401},
		"of another authority":                 {theirs.Sign(spiffe), nil, 0},
		"over":                                 {ours.Sign(&x509.Certificate{URIs: uris, ExtKeyUsage: client, NotAfter: time.Now().Add(-time.Minute)}), nil, 0},
		"of a server":                          {ours.Sign(&x509.Certificate{URIs: uris, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}), nil, 0},
		"a header of the like":                 {ours.Sign(certs.For("you.example")), []string{"X-Forwarded-Client-Cert", "URI=spiffe://x/me"}, 401},
	} {
		if got, text := asked(t, srv, &c.cert, "GET", "/v1/resources", "", c.headers...); got != c.want {
			t.Errorf("%s: %d %s; want %d", name, got, text, c.want)
		}
	}
	if got, text := asked(t, srv, nil, "GET", "/v1/resources", ""); got != 401 {
		t.Errorf("no certificate: %d %s", got, text)
	}
	me := ours.Sign(spiffe)
	if got, text := asked(t, srv, &me, "GET", "/v1/resources", "", "Authorization", "Bearer another"); got != 401 || !strings.Contains(text, "one principal's, and the client certificate another's") {
		t.Errorf("two principals get %d %s", got, text)
	}
	if _, err := all.Replace([]access.Definition{{Name: "me", Certificates: []string{"dns:me.example"}}}); err != nil {
		t.Fatal(err)
	}
	if got, text := asked(t, srv, &me, "GET", "/v1/resources", ""); got != 401 {
		t.Errorf("a name that was taken away: %d %s", got, text)
	}
}

// A certificate with one right passes the same matrix.
func TestACertificateHasItsPrincipalsRightsAndNoOther(t *testing.T) {
	t.Parallel()
	a := certs.New(certs.Authority("ours"))
	me := a.Sign(certs.For("me.example"))
	s, all, handles := holding(t)
	for _, v := range []access.Verb{access.Acquire, access.Inspect, access.Metrics} {
		rule := access.Rule{Resources: mine, Verbs: []access.Verb{v}}
		if v.OfGateway() {
			rule.Resources = ""
		}
		if _, err := all.Replace([]access.Definition{{Name: "me", Certificates: []string{"dns:me.example"}, Rules: []access.Rule{rule}}}); err != nil {
			t.Fatal(err)
		}
		srv := overTLS(t, s, a)
		for _, e := range matrix() {
			method, path, _ := strings.Cut(e.route, " ")
			if e.path != "" {
				path = e.path
			}
			var headers []string
			if e.grant != "" {
				headers = []string{fence.HeaderResource, mine, fence.HeaderToken, e.grant}
			}
			allowed := e.verb == public || e.verb == anyToken || e.verb == v
			if got, text := asked(t, srv, &me, method, path, handles.Replace(e.body), headers...); (got == http.StatusForbidden) == allowed || got == http.StatusUnauthorized || got == 0 {
				t.Errorf("%s with %s: %d %s; allowed should be %v", e.route, v, got, text, allowed)
			}
		}
	}
}

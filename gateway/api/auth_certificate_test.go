package api_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
)

// authority signs certificates of clients.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	pair := a.sign(t, a.cert)
	a.cert, _ = x509.ParseCertificate(pair.Certificate[0])
	a.key, _ = pair.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// sign signs a certificate; an authority without a certificate signs its own.
func (a authority) sign(t *testing.T, of *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, of, a.cert, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// client returns a certificate that expires after lasts.
func (a authority) client(t *testing.T, lasts time.Duration, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	of := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lasts),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	change(of)
	return a.sign(t, of)
}

// asked returns the server's answer to a client with a certificate and perhaps a token; 0: the handshake failed.
func asked(t *testing.T, srv *httptest.Server, cert *tls.Certificate, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	transport, _ := srv.Client().Transport.(*http.Transport)
	transport = transport.Clone()
	transport.DisableKeepAlives = true
	if cert != nil {
		transport.TLSClientConfig.Certificates = []tls.Certificate{*cert}
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

func overTLS(t *testing.T, s *api.Server, a authority) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(s.Handler())
	srv.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	srv.TLS.ClientCAs.AddCert(a.cert)
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
	ours, theirs := newAuthority(t), newAuthority(t)
	all := certified(t, access.Rule{Resources: "*", Verbs: []access.Verb{access.Inspect}})
	srv := overTLS(t, newServer(t, newFakes(), func(c *api.Config) { c.Principals = all }), ours)
	dns := func(names ...string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.DNSNames = names }
	}
	spiffe := func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "x", Path: "/me"}} }
	for name, c := range map[string]struct {
		cert    tls.Certificate
		headers []string
		want    int
	}{
		"a name":          {ours.client(t, time.Hour, dns("ME.example", "other.example")), nil, 200},
		"a URI":           {ours.client(t, time.Hour, spiffe), nil, 200},
		"no right":        {ours.client(t, time.Hour, func(c *x509.Certificate) { c.EmailAddresses = []string{"another@x.example"} }), nil, 403},
		"nobody's name":   {ours.client(t, time.Hour, dns("you.example")), nil, 401},
		"a common name":   {ours.client(t, time.Hour, func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "me.example"} }), nil, 401},
		"of another kind": {ours.client(t, time.Hour, func(c *x509.Certificate) { c.EmailAddresses = []string{"me.example"} }), nil, 401},
		"two principals' names": {ours.client(t, time.Hour, func(c *x509.Certificate) {
			c.DNSNames, c.EmailAddresses = []string{"me.example"}, []string{"another@x.example"}
		}), nil, 401},
		"another's token":                      {ours.client(t, time.Hour, spiffe), []string{"Authorization", "Bearer another"}, 401},
		"its own token":                        {ours.client(t, time.Hour, spiffe), []string{"Authorization", "Bearer me"}, 200},
		"a token, and a certificate of nobody": {ours.client(t, time.Hour, dns("you.example")), []string{"Authorization", "Bearer me"}, 200},
		"a wrong token":                        {ours.client(t, time.Hour, spiffe), []string{"Authorization", "Bearer x"}, 401},
		"of another authority":                 {theirs.client(t, time.Hour, spiffe), nil, 0},
		"over":                                 {ours.client(t, -time.Minute, spiffe), nil, 0},
		"of a server":                          {ours.client(t, time.Hour, func(c *x509.Certificate) { spiffe(c); c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), nil, 0},
		"a header of the like":                 {ours.client(t, time.Hour, dns("you.example")), []string{"X-Forwarded-Client-Cert", "URI=spiffe://x/me"}, 401},
	} {
		if got, text := asked(t, srv, &c.cert, "GET", "/v1/resources", "", c.headers...); got != c.want {
			t.Errorf("%s: %d %s; want %d", name, got, text, c.want)
		}
	}
	if got, text := asked(t, srv, nil, "GET", "/v1/resources", ""); got != 401 {
		t.Errorf("no certificate: %d %s", got, text)
	}
	me := ours.client(t, time.Hour, spiffe)
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
	a := newAuthority(t)
	me := a.client(t, time.Hour, func(c *x509.Certificate) { c.DNSNames = []string{"me.example"} })
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

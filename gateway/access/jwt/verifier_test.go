package jwt

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/fencegate/fencegate/gateway/access"
)

const (
	idp      = "https://idp.example"
	audience = "fencegate"
)

// provider issues tokens, and publishes its keys over https.
type provider struct {
	server *httptest.Server
	ca     string
	keys   atomic.Pointer[[]jose.JSONWebKey]
	down   atomic.Bool
	asked  atomic.Int32
}

func provide(t *testing.T, keys ...jose.JSONWebKey) *provider {
	t.Helper()
	p := &provider{}
	p.keys.Store(&keys)
	p.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.asked.Add(1)
		if p.down.Load() {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: *p.keys.Load()})
	}))
	t.Cleanup(p.server.Close)
	p.ca = filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	if err := os.WriteFile(p.ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *provider) issuer(algorithms ...string) Issuer {
	return Issuer{URL: idp, Audience: audience, Algorithms: algorithms, Keys: p.server.URL, CA: p.ca}
}

func verifier(t *testing.T, all ...Issuer) *Verifier {
	t.Helper()
	v, err := New(all, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func rsaKey(t *testing.T, bits int) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func public(kid string, key crypto.Signer) jose.JSONWebKey {
	return jose.JSONWebKey{KeyID: kid, Key: key.Public(), Use: "sig"}
}

type claims map[string]any

// good are claims that count, with changes; nil takes one away.
func good(changes claims) claims {
	now := time.Now().Unix()
	all := claims{"iss": idp, "aud": audience, "sub": "nightly", "iat": now, "nbf": now, "exp": now + 60, "groups": []string{"jobs", "staff"}}
	for name, value := range changes {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	return all
}

func sign(t *testing.T, alg jose.SignatureAlgorithm, key any, kid string, c claims, head map[jose.HeaderKey]any) string {
	t.Helper()
	opts := &jose.SignerOptions{ExtraHeaders: head}
	if kid != "" {
		opts = opts.WithHeader("kid", kid)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, opts)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestATokenOfAConfiguredIssuerCounts(t *testing.T) {
	t.Parallel()
	one := rsaKey(t, 2048)
	two, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, three, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := provide(t, public("1", one), public("2", two), public("3", three))
	v := verifier(t, p.issuer("RS256", "PS512", "ES256", "EdDSA"))
	for alg, key := range map[jose.SignatureAlgorithm]crypto.Signer{"RS256": one, "PS512": one, "ES256": two, "EdDSA": three} {
		for _, kid := range []string{"", map[crypto.Signer]string{one: "1", two: "2"}[asKey(key)]} {
			if kid == "" && alg == "EdDSA" {
				kid = "3"
			}
			got, err := v.Verify(t.Context(), sign(t, alg, key, kid, good(claims{"aud": []string{"other", audience}}), nil))
			if err != nil || got.Issuer != idp || got.Claims["sub"][0] != "nightly" || !slices.Equal(got.Claims["groups"], []string{"jobs", "staff"}) {
				t.Errorf("%s, kid %q: %+v, %v", alg, kid, got, err)
			}
			if left := time.Until(got.Expires); left <= 0 || left > time.Minute {
				t.Errorf("%s: %v left", alg, left)
			}
		}
	}
	if n := p.asked.Load(); n != 1 {
		t.Errorf("asked for the keys %d times", n)
	}
}

// asKey is a key that can be compared.
func asKey(key crypto.Signer) crypto.Signer {
	if _, is := key.(ed25519.PrivateKey); is {
		return nil
	}
	return key
}

func TestWhatIsNotATokenOfTheIssuerDoesNotCount(t *testing.T) {
	t.Parallel()
	key, other, weak := rsaKey(t, 2048), rsaKey(t, 2048), rsaKey(t, 1024)
	p := provide(t, public("1", key), public("weak", weak))
	evil := provide(t, public("1", other))
	v := verifier(t, p.issuer("RS256"))
	now := time.Now().Unix()
	signed := func(changes claims) string { return sign(t, "RS256", key, "1", good(changes), nil) }
	whole := signed(nil)
	if _, err := v.Verify(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(whole, ".")
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	secret := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki})
	for name, token := range map[string]string{
		"no signature":                   encode(`{"alg":"none"}`) + "." + parts[1] + ".",
		"the key as a secret":            sign(t, "HS256", secret, "1", good(nil), nil),
		"another algorithm of the key":   sign(t, "RS512", key, "1", good(nil), nil),
		"another's key":                  sign(t, "RS256", other, "1", good(nil), nil),
		"another's key and no kid":       sign(t, "RS256", other, "", good(nil), nil),
		"a weak key of its own":          sign(t, "RS256", weak, "weak", good(nil), nil),
		"an unknown kid":                 sign(t, "RS256", key, "2", good(nil), nil),
		"keys elsewhere":                 sign(t, "RS256", other, "1", good(nil), map[jose.HeaderKey]any{"jku": evil.server.URL, "x5u": evil.server.URL}),
		"its key with it":                sign(t, "RS256", other, "1", good(nil), map[jose.HeaderKey]any{"jwk": public("1", other)}),
		"another issuer":                 signed(claims{"iss": "https://other.example"}),
		"an issuer with a slash":         signed(claims{"iss": idp + "/"}),
		"no issuer":                      signed(claims{"iss": nil}),
		"another audience":               signed(claims{"aud": "billing"}),
		"an audience that contains ours": signed(claims{"aud": "fencegate-test"}),
		"no audience":                    signed(claims{"aud": nil}),
		"no end":                         signed(claims{"exp": nil}),
		"expired":                        signed(claims{"exp": now}),
		"not yet":                        signed(claims{"nbf": now + 120}),
		"from the future":                signed(claims{"iat": now + 120}),
		"an end that is a text":          signed(claims{"exp": "tomorrow"}),
		"other claims":                   parts[0] + "." + encode(`{"iss":"`+idp+`","aud":"fencegate","exp":9999999999}`) + "." + parts[2],
		"too long":                       signed(claims{"pad": strings.Repeat("x", maxToken)}),
		"three words":                    "a.b.c", "empty": "", "dots": "..", "spaces": whole + " ", "a line": whole + "\n",
	} {
		if got, err := v.Verify(t.Context(), token); !errors.Is(err, access.ErrUnknown) || got.Issuer != "" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if n := evil.asked.Load(); n != 0 {
		t.Errorf("asked where the token said, %d times", n)
	}
}

// Keys change, and their server may be away: who is known goes on, and strangers cost one question in a while.
func TestKeysRotateAndOutliveAnOutage(t *testing.T) {
	t.Parallel()
	old, next := rsaKey(t, 2048), rsaKey(t, 2048)
	p := provide(t, public("old", old))
	v := verifier(t, p.issuer("RS256"))
	var passed atomic.Int64
	v.issuers[idp].keys.now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	byOld, byNext := sign(t, "RS256", old, "old", good(nil), nil), sign(t, "RS256", next, "next", good(nil), nil)
	verify := func(token string, want error) {
		t.Helper()
		_, err := v.Verify(t.Context(), token)
		if want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	verify(byOld, nil)
	for range 20 {
		verify(byNext, access.ErrUnknown)
	}
	if n := p.asked.Load(); n != 1 {
		t.Errorf("strangers had the keys asked for %d times", n)
	}
	p.keys.Store(&[]jose.JSONWebKey{public("next", next)})
	passed.Add(int64(againAfter))
	verify(byNext, nil)
	verify(byOld, access.ErrUnknown)

	p.down.Store(true)
	passed.Add(int64(refreshAfter))
	verify(byNext, nil)
	passed.Add(int64(trustedFor))
	_, err := v.Verify(t.Context(), byNext)
	if away, ok := errors.AsType[*UnavailableError](err); !ok || away.Issuer != idp {
		t.Errorf("keys of yesterday: %v", err)
	}
	p.down.Store(false)
	passed.Add(int64(againAfter))
	verify(byNext, nil)
}

func TestAServerThatIsNotTheIssuersIsNotBelieved(t *testing.T) {
	t.Parallel()
	key := rsaKey(t, 2048)
	p := provide(t, public("1", key))
	stranger := p.issuer("RS256")
	stranger.CA = ""
	plain := httptest.NewServer(p.server.Config.Handler)
	defer plain.Close()
	leads := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer leads.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leads.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, one := range map[string]Issuer{
		"an unknown certificate": stranger, "it leads to plain http": {URL: idp, Audience: audience, Algorithms: []string{"RS256"}, Keys: leads.URL, CA: ca},
	} {
		_, err := verifier(t, one).Verify(t.Context(), sign(t, "RS256", key, "1", good(nil), nil))
		if _, ok := errors.AsType[*UnavailableError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	slow, cancel := context.WithCancel(t.Context())
	cancel()
	v := verifier(t, p.issuer("RS256"))
	if _, err := v.Verify(slow, sign(t, "RS256", key, "1", good(nil), nil)); err == nil {
		t.Error("who has gone is known")
	}
	_, _ = v.Verify(t.Context(), sign(t, "RS256", key, "1", good(nil), nil)) // so that the question has ended
}

func TestKeysCanStandInAFile(t *testing.T) {
	t.Parallel()
	key := rsaKey(t, 2048)
	file := filepath.Join(t.TempDir(), "keys.json")
	write := func(text string) Issuer {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Issuer{URL: idp, Audience: audience, Algorithms: []string{"RS256"}, KeysFile: file}
	}
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{KeyID: "secret", Key: []byte("s")}, public("1", key)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verifier(t, write(string(text))).Verify(t.Context(), sign(t, "RS256", key, "1", good(nil), nil)); err != nil {
		t.Error(err)
	}
	private, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{KeyID: "1", Key: key}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "{}", "[]", `{"keys": []}`, `{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}`, string(private)} {
		if _, err := New([]Issuer{write(bad)}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

func TestTheLogSaysWhyAndShowsNoToken(t *testing.T) {
	t.Parallel()
	key := rsaKey(t, 2048)
	p := provide(t, public("1", key))
	var out bytes.Buffer
	v, err := New([]Issuer{p.issuer("RS256")}, slog.New(slog.NewTextHandler(&out, nil)))
	if err != nil {
		t.Fatal(err)
	}
	token := sign(t, "RS256", key, "1", good(claims{"aud": "billing"}), nil)
	for range 5 {
		_, _ = v.Verify(t.Context(), token)
	}
	text := out.String()
	if strings.Count(text, "\n") != 1 || !strings.Contains(text, `reason="it is for another audience"`) || !strings.Contains(text, idp) {
		t.Errorf("logged %q", text)
	}
	for part := range strings.SplitSeq(token, ".") {
		if strings.Contains(text, part) {
			t.Error("the log has a part of the token")
		}
	}
}

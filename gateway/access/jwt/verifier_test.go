package jwt

import (
	"bytes"
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
	"sync"
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

// provider issues tokens, and publishes its keys over HTTPS.
type provider struct {
	server *httptest.Server
	ca     string
	keys   atomic.Pointer[[]jose.JSONWebKey]
	text   atomic.Pointer[string] // instead of the keys
	hold   sync.Mutex             // while locked, requests wait
	down   atomic.Bool
	asked  atomic.Int32
}

func provide(t *testing.T, keys ...jose.JSONWebKey) *provider {
	t.Helper()
	p := &provider{}
	p.keys.Store(&keys)
	p.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.asked.Add(1)
		p.hold.Lock()
		defer p.hold.Unlock()
		if p.down.Load() {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		if text := p.text.Load(); text != nil {
			_, _ = w.Write([]byte(*text))
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

// good returns valid claims with changes; nil removes one.
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

// asKey returns a key that can be compared.
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

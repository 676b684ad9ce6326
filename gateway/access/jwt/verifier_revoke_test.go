package jwt

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/internal/testenv"
)

// Removing a key from the file ends what was opened with tokens that it signed, though the principals are the same.
func TestWhatAnIssuersKeyOpenedEndsWithTheKey(t *testing.T) {
	t.Parallel()
	key, other := rsaKey(t, 2048), rsaKey(t, 2048)
	path := filepath.Join(t.TempDir(), "keys.json")
	issuer := Issuer{URL: "https://idp.test", Audience: "fencegate", Algorithms: []string{"RS256"}, KeysFile: path}
	options := func(issuer Issuer, keys ...jose.JSONWebKey) access.Option {
		text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return access.VerifiedBy(verifier(t, issuer))
	}
	all := []access.Definition{
		{Name: "ci", Issued: []access.Claims{{Issuer: issuer.URL, Equal: map[string]string{"sub": "ci"}}}},
		{Name: "local", Tokens: []access.Digest{access.DigestOf("local")}},
	}
	ps, err := access.New(all, options(issuer, public("1", key)))
	if err != nil {
		t.Fatal(err)
	}
	subject := claims{"iss": issuer.URL, "aud": issuer.Audience, "sub": "ci", "exp": time.Now().Add(time.Hour).Unix()}
	token := sign(t, jose.RS256, key, "1", subject, nil)
	open := func(token string) (ended func() bool) {
		p, err := ps.Authenticate(t.Context(), token)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := p.Lasts(t.Context())
		t.Cleanup(cancel)
		return func() bool { return ctx.Err() != nil }
	}
	replace := func(o access.Option) {
		if _, err := ps.Replace(all, o); err != nil {
			t.Fatal(err)
		}
	}
	local, first := open("local"), open(token)
	replace(options(issuer, public("1", key)))
	replace(options(issuer, public("1", key), public("2", other)))
	if first() {
		t.Error("an added key ended what another key had opened")
	}
	renamed := issuer
	renamed.Audience = "another"
	replace(options(renamed, public("1", key), public("2", other)))
	testenv.Eventually(t, "what its tokens opened ends with the issuer's old audience", first)
	replace(options(issuer, public("1", key), public("2", other)))
	second := open(token)
	replace(options(issuer, public("2", other)))
	testenv.Eventually(t, "what the key opened ends with it", second)
	third := open(sign(t, jose.RS256, other, "2", subject, nil))
	elsewhere := issuer
	elsewhere.URL = "https://elsewhere.test"
	replace(options(elsewhere, public("2", other)))
	testenv.Eventually(t, "what its tokens opened ends with the issuer", third)
	if local() {
		t.Error("what the gateway's own token opened has ended")
	}
}

// Who waited with a token of a removed key has no right behind the change, though its claims still fit.
func TestATokenOfARemovedKeyHasNoRights(t *testing.T) {
	t.Parallel()
	key, other := rsaKey(t, 2048), rsaKey(t, 2048)
	path := filepath.Join(t.TempDir(), "keys.json")
	options := func(audience string, keys ...jose.JSONWebKey) access.Option {
		text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return access.VerifiedBy(verifier(t, Issuer{URL: idp, Audience: audience, Algorithms: []string{"RS256"}, KeysFile: path}))
	}
	all := []access.Definition{{
		Name: "nightly", Rules: []access.Rule{{Resources: "*", Verbs: []access.Verb{access.Acquire}}},
		Issued: []access.Claims{{Issuer: idp, Equal: map[string]string{"sub": "nightly"}}},
	}}
	token := sign(t, jose.RS256, key, "1", good(nil), nil)
	for name, c := range map[string]struct {
		change access.Option
		want   bool
	}{
		"a key is added":   {options(audience, public("1", key), public("2", other)), true},
		"the key is gone":  {options(audience, public("2", other)), false},
		"another audience": {options("another", public("1", key)), false},
	} {
		ps, err := access.New(all, options(audience, public("1", key)))
		if err != nil {
			t.Fatal(err)
		}
		p, err := ps.Authenticate(t.Context(), token)
		if err != nil || !p.May(access.Acquire, "a") {
			t.Fatalf("%s: before: %v", name, err)
		}
		if _, err := ps.Replace(all, c.change); err != nil {
			t.Fatal(err)
		}
		if got := p.Changed().May(access.Acquire, "a"); got != c.want || p.May(access.Acquire, "a") != c.want {
			t.Errorf("%s: may acquire: %t, want %t", name, got, c.want)
		}
	}
}

package jwt

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/fencegate/fencegate/gateway/access"
)

// Keys change, and their server may be away: known keys stay valid, and unknown ones cost one request per pause.
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

// A caller with a known key does not wait for a request; callers with unknown keys share one.
func TestWhoHasAKnownKeyWaitsForNoAnswer(t *testing.T) {
	t.Parallel()
	key, next := rsaKey(t, 2048), rsaKey(t, 2048)
	p := provide(t, public("1", key))
	v := verifier(t, p.issuer("RS256"))
	var passed atomic.Int64
	v.issuers[idp].keys.now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	known, stranger := sign(t, "RS256", key, "1", good(nil), nil), sign(t, "RS256", next, "next", good(nil), nil)
	if _, err := v.Verify(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	p.keys.Store(&[]jose.JSONWebKey{public("1", key), public("next", next)})
	p.hold.Lock()
	passed.Add(int64(refreshAfter))
	answers := make(chan error, 10)
	for range cap(answers) {
		go func() {
			_, err := v.Verify(t.Context(), stranger)
			answers <- err
		}()
	}
	for range 10 {
		if _, err := v.Verify(t.Context(), known); err != nil {
			t.Error(err)
		}
	}
	select {
	case err := <-answers:
		t.Errorf("a stranger did not wait: %v", err)
	default:
	}
	p.hold.Unlock()
	for range cap(answers) {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if n := p.asked.Load(); n != 2 {
		t.Errorf("asked %d times", n)
	}
}

// A reload takes over the keys, and requests them again.
func TestKeysOutliveAReload(t *testing.T) {
	t.Parallel()
	key, next := rsaKey(t, 2048), rsaKey(t, 2048)
	p := provide(t, public("1", key))
	define := []access.Definition{{Name: "nightly", Issued: []access.Claims{{Issuer: idp, Equal: map[string]string{"sub": "nightly"}}}}}
	all, err := access.New(define, access.VerifiedBy(verifier(t, p.issuer("RS256"))))
	if err != nil {
		t.Fatal(err)
	}
	authenticate := func(when string, want bool, key *rsa.PrivateKey) {
		t.Helper()
		if _, err := all.Authenticate(t.Context(), sign(t, "RS256", key, "1", good(nil), nil)); (err == nil) != want {
			t.Errorf("%s: %v", when, err)
		}
	}
	reload := func(i Issuer) *Verifier {
		t.Helper()
		v := verifier(t, i)
		if _, err := all.Replace(define, access.VerifiedBy(v)); err != nil {
			t.Fatal(err)
		}
		return v
	}
	authenticate("at first", true, key)
	p.down.Store(true)
	again := reload(p.issuer("RS256"))
	authenticate("after a reload in an outage", true, key)
	answered(again)
	if n := p.asked.Load(); n != 2 {
		t.Errorf("asked %d times: a reload asks again", n)
	}

	p.down.Store(false)
	p.keys.Store(&[]jose.JSONWebKey{public("1", next)})
	again = reload(p.issuer("RS256"))
	authenticate("until the answer", true, key)
	answered(again)
	authenticate("a key that was taken away", false, key)
	authenticate("the new key", true, next)

	elsewhere := p.issuer("RS256")
	elsewhere.Keys = p.server.URL + "/other"
	p.down.Store(true)
	reload(elsewhere)
	authenticate("keys of another address", false, next)
}

// answered returns once no request for keys is running.
func answered(v *Verifier) {
	k := v.issuers[idp].keys
	k.mu.Lock()
	asking := k.asking
	k.mu.Unlock()
	if asking != nil {
		<-asking
	}
}

func TestAnAnswerThatIsNoSetOfKeysChangesNothing(t *testing.T) {
	t.Parallel()
	key := rsaKey(t, 2048)
	set := func(n int, pad string) string {
		all := make([]jose.JSONWebKey, n)
		for i := range all {
			all[i] = public("1", key)
		}
		text, err := json.Marshal(map[string]any{"pad": pad, "keys": all})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"as many keys as may be":   {set(maxKeys, ""), true},
		"a key too many":           {set(maxKeys+1, ""), false},
		"an answer that is long":   {set(1, strings.Repeat("x", maxSet-10_000)), true},
		"an answer that is longer": {set(1, strings.Repeat("x", maxSet)), false},
		"a page":                   {"<html>", false},
	} {
		p := provide(t)
		p.text.Store(&c.text)
		_, err := verifier(t, p.issuer("RS256")).Verify(t.Context(), sign(t, "RS256", key, "1", good(nil), nil))
		if _, away := errors.AsType[*UnavailableError](err); away == c.want || c.want && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
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
	_, _ = v.Verify(t.Context(), sign(t, "RS256", key, "1", good(nil), nil)) // so that the request has ended
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

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
)

// issuing creates a key, the file of its public half, and a function that signs claims with it.
func issuing(t *testing.T) (keys string, sign func(audience string) string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{KeyID: "1", Key: key.Public()}}})
	if err != nil {
		t.Fatal(err)
	}
	keys = filepath.Join(t.TempDir(), "keys.json")
	writeFile(t, keys, string(text))
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{KeyID: "1", Key: key}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return keys, func(audience string) string {
		token, err := josejwt.Signed(signer).Claims(josejwt.Claims{
			Issuer: "https://idp.example", Subject: "nightly", Audience: josejwt.Audience{audience}, Expiry: josejwt.NewNumericDate(time.Now().Add(time.Hour)),
		}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
}

func TestATokenOfAnIssuerHasItsPrincipalsRights(t *testing.T) {
	t.Parallel()
	keys, sign := issuing(t)
	file := filepath.Join(t.TempDir(), "principals")
	writeFile(t, file, strings.ReplaceAll(`principals:
  - name: nightly
    jwt: [{issuer: "https://idp.example", claims: {sub: nightly}}]
    allow: [{resources: "orders/*", verbs: inspect}]
issuers:
  - {issuer: "https://idp.example", audience: fencegate, algorithms: ES256, keys_file: "KEYS"}
`, "KEYS", keys))
	if code, out, stderr := cli(t, nil, "principals", "check", file); code != exitOK || !strings.Contains(out, "nightly\n  inspect orders/*") {
		t.Errorf("check: %d %s %s", code, out, stderr)
	}
	addr, err := redisserver.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	startServe(t, testenv.Postgres(t), "--api-listen", addr, "--principals", file)
	for _, c := range []struct {
		path, token string
		want        int
	}{
		{"/v1/resources/orders/1", sign("fencegate"), http.StatusNotFound},
		{"/v1/resources/stock/1", sign("fencegate"), http.StatusForbidden},
		{"/v1/resources/orders/1", sign("billing"), http.StatusUnauthorized},
		{"/v1/resources/orders/1", sign("fencegate") + "A", http.StatusUnauthorized},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("GET %s: %d, want %d", c.path, resp.StatusCode, c.want)
		}
	}

	writeFile(t, keys, "{}")
	if code, _, stderr := cli(t, nil, "principals", "check", file); code != exitUsage || !strings.Contains(stderr, keys) {
		t.Errorf("check without keys: %d %s", code, stderr)
	}
}

// A token that was replaced in its file is sent from the next request on. A file that is being written changes nothing.
func TestTheTokenOfAFileIsThatOfNow(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	writeFile(t, file, "one\n")
	now := tokenNow(file, "one")
	for _, step := range []struct{ text, want string }{{"one\n", "one"}, {"two\n", "two"}, {"", "two"}, {"a\nb\n", "two"}, {"a\x01b", "two"}, {"three", "three"}} {
		writeFile(t, file, step.text)
		if got := now(); got != step.want {
			t.Errorf("%q: %q, want %q", step.text, got, step.want)
		}
	}
}

package credentials

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// A cached token and a new one must give the same result.
func TestARememberedTokenIsJudgedAsANewOne(t *testing.T) {
	t.Parallel()
	k, err := ParseKeyring("one:" + strings.Repeat("4f", 32))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	mine, err := k.Issue("orders/1", 5, now.Add(time.Hour), 0)
	if err != nil {
		t.Fatal(err)
	}
	others, err := k.Issue("orders/2", 5, now.Add(time.Hour), 0)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		got, err := k.Verify(mine.AccessKeyID, mine.SessionToken, now)
		if err != nil || got.secret != mine.SecretAccessKey || got.session.Resource != "orders/1" {
			t.Errorf("round %d: %+v, %v", round, got, err)
		}
		if _, err := k.Verify(others.AccessKeyID, mine.SessionToken, now); !errors.Is(err, ErrForged) {
			t.Errorf("round %d, another's access key: %v", round, err)
		}
		if _, err := k.Verify(mine.AccessKeyID, mine.SessionToken, now.Add(2*time.Hour)); !errors.Is(err, ErrExpired) {
			t.Errorf("round %d, after its end: %v", round, err)
		}
		forged := mine.SessionToken[:len(mine.SessionToken)-2] + "AA"
		if _, err := k.Verify(accessKeyOf(forged), forged, now); !errors.Is(err, ErrForged) {
			t.Errorf("round %d, forged: %v", round, err)
		}
		if len(k.cache.tokens) != 1 {
			t.Errorf("%d tokens are remembered, want the authentic one only", len(k.cache.tokens))
		}
	}
}

func TestASigningKeyIsOfItsDayRegionAndService(t *testing.T) {
	t.Parallel()
	shared := &Verified{secret: "secret"}
	seen := map[string][]byte{}
	var all sync.WaitGroup
	for _, date := range []string{"20261121", "20261122"} {
		for _, region := range []string{"us-east-1", "eu-west-1"} {
			for _, service := range []string{"s3", "sts"} {
				want := (&Verified{secret: "secret"}).SigningKey(date, region, service)
				if before, twice := seen[string(want)]; twice {
					t.Errorf("two have the key %x", before)
				}
				seen[string(want)] = want
				all.Go(func() {
					for range 100 {
						if got := shared.SigningKey(date, region, service); !bytes.Equal(got, want) {
							t.Errorf("%s %s %s: another's key", date, region, service)
						}
					}
				})
			}
		}
	}
	all.Wait()
}

func TestRememberedTokensAreBounded(t *testing.T) {
	t.Parallel()
	var k tokenCache
	for range maxCached + 10 {
		k.put(rand.Text(), &Verified{})
	}
	if n := len(k.tokens); n > maxCached {
		t.Errorf("%d are remembered", n)
	}
	token := &Verified{}
	if k.put("x", token); k.get("x") != token {
		t.Error("the newest is not remembered")
	}
	if text := fmt.Sprint(&Keyring{cache: tokenCache{tokens: map[string]*Verified{"x": {secret: "hidden"}}}}); strings.Contains(text, "hidden") {
		t.Errorf("%s shows a secret", text)
	}
}

// A gateway accepts credentials that its earlier release issued: they write while the lease is held.
func TestTokensOfTheEarlierFormatAreRead(t *testing.T) {
	t.Parallel()
	k, err := ParseKeyring("one:" + strings.Repeat("4f", 32))
	if err != nil {
		t.Fatal(err)
	}
	expires := time.Now().Add(time.Hour).Truncate(time.Second)
	payload := append([]byte{1, 3}, "one"...)
	payload = binary.BigEndian.AppendUint64(payload, uint64(expires.Unix()))
	payload = binary.BigEndian.AppendUint64(payload, 5)
	payload = append(payload, "orders/1"...)
	text := base64.RawURLEncoding.EncodeToString(append(payload, hmacOf(k.keys["one"].mac, payload)...))
	if s, err := k.Open(text); err != nil || s != (Session{Resource: "orders/1", Token: 5, Expires: expires, Terms: WhileHeld}) {
		t.Errorf("got %+v, %v", s, err)
	}
	short := []byte{2, 3, 'o', 'n', 'e', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	text = base64.RawURLEncoding.EncodeToString(append(short, hmacOf(k.keys["one"].mac, short)...))
	if _, err := k.Open(text); !errors.Is(err, ErrForged) {
		t.Errorf("a short one: %v", err)
	}
}

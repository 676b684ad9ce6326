package api_test

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
)

func renew(t *testing.T, s *api.Server, handle string) answer {
	t.Helper()
	return request(t, s, "POST", "/v1/leases/renew", fmt.Sprintf(`{"handle":%q,"ttl":"30s"}`, handle))
}

func TestAnyChangeOfAHandleIsRefused(t *testing.T) {
	t.Parallel()
	f := newFakes()
	s := newServer(t, f)
	handle := aHandle(t, s)
	for i := range len(handle) {
		forged := []byte(handle)
		if forged[i]++; forged[i] == '{' || forged[i] == '[' || forged[i] == ':' || forged[i] == '.' || forged[i] == '`' {
			forged[i] = 'a'
		}
		if a := renew(t, s, string(forged)); a.status != http.StatusBadRequest || a.str("field") != "handle" {
			t.Errorf("byte %d changed: %d %s", i, a.status, a.text)
		}
		if a := renew(t, s, handle[:i]); a.status != http.StatusBadRequest {
			t.Errorf("cut after %d bytes: %d %s", i, a.status, a.text)
		}
	}
	if f.renewed != 0 {
		t.Error("a forged handle renewed a lease")
	}
}

func TestHandleKeysRotateByID(t *testing.T) {
	t.Parallel()
	key := func(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }
	serve := func(current string, master map[string][]byte) *api.Server {
		return newServer(t, newFakes(), func(c *api.Config) { c.Handles = api.HandleKeys{Current: current, Master: master} })
	}
	old := serve("k1", map[string][]byte{"k1": key(1)})
	both := serve("k2", map[string][]byte{"k1": key(1), "k2": key(2)})
	rotated := serve("k2", map[string][]byte{"k2": key(2)})
	swapped := serve("k1", map[string][]byte{"k1": key(2)})

	byOld, byNew := aHandle(t, old), aHandle(t, both)
	for name, c := range map[string]struct {
		server *api.Server
		handle string
		want   int
	}{
		"old handle, both keys":          {both, byOld, 200},
		"new handle, both keys":          {both, byNew, 200},
		"old handle, old key dropped":    {rotated, byOld, 400},
		"new handle, old key dropped":    {rotated, byNew, 200},
		"new handle, key not there yet":  {old, byNew, 400},
		"old handle, id with other key":  {swapped, byOld, 400},
		"new handle, key under other id": {swapped, byNew, 400},
	} {
		if a := renew(t, c.server, c.handle); a.status != c.want {
			t.Errorf("%s: %d, want %d: %s", name, a.status, c.want, a.text)
		} else if a.status == http.StatusBadRequest && (!strings.Contains(a.str("detail"), "another master key") || !strings.Contains(a.str("hint"), "doctor")) {
			t.Errorf("%s: the cause is missing: %s", name, a.text)
		}
	}
}

func TestRenewalsEndAtTheHandlesCap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		s := newServer(t, f, func(c *api.Config) { c.MaxLease = time.Hour })
		handle := aHandle(t, s)
		<-time.After(time.Hour - 10*time.Second) // on the bubble's clock
		if a := renew(t, s, handle); a.status != http.StatusOK || f.renewed != 10*time.Second || !strings.Contains(a.text, `"final":true`) {
			t.Errorf("shortly before the cap: %d, for %v; want the 10s that are left", a.status, f.renewed)
		}
		if request(t, s, "POST", "/v1/leases/renew", fmt.Sprintf(`{"handle":%q,"ttl":"1ms"}`, handle)); f.renewed != time.Millisecond {
			t.Errorf("for %v, where 1ms was asked for, which a source refuses", f.renewed)
		}
		<-time.After(10*time.Second - leasing.MinTTL/2)
		if a := renew(t, s, handle); a.status != http.StatusOK || f.renewed != leasing.MinTTL || a.body["valid_ms"] != 150. || !strings.Contains(a.text, `"final":true`) {
			t.Errorf("at the last moment: %d %s, for %v", a.status, a.text, f.renewed)
		}
		<-time.After(leasing.MinTTL / 2)
		if a := renew(t, s, handle); a.status != http.StatusGone || a.str("code") != "lease_lost" || !strings.Contains(a.str("detail"), "1h0m0s after its acquisition") {
			t.Errorf("at the cap: %d %s", a.status, a.text)
		}
		if a := request(t, s, "POST", "/v1/leases/release", fmt.Sprintf(`{"handle":%q}`, handle)); a.status != http.StatusNoContent {
			t.Errorf("release after the cap: %d %s", a.status, a.text)
		}
	})
}

func TestALeaseWithoutACapIsRenewedForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var held time.Duration
		f := newFakes()
		s := newServer(t, f, func(c *api.Config) { c.MaxLease = api.Unlimited })
		handle := aHandle(t, s)
		<-time.After(1000 * time.Hour) // on the bubble's clock
		if a := renew(t, s, handle); a.status != http.StatusOK || f.renewed != 30*time.Second || strings.Contains(a.text, "final") {
			t.Errorf("%d %s, for %v", a.status, a.text, f.renewed)
		}
		another := newServer(t, newFakes(), func(c *api.Config) { // with another cap
			c.MaxLease, c.Ended = time.Hour, func(d time.Duration, _ bool) { held = d }
		})
		if a := request(t, another, "POST", "/v1/leases/release", fmt.Sprintf(`{"handle":%q}`, handle)); a.status != http.StatusNoContent || held != 1000*time.Hour {
			t.Errorf("%d %s, held for %v", a.status, a.text, held)
		}
	})
}

// handleV2 returns a handle of an earlier release, without a time of acquisition.
func handleV2(t *testing.T, id string, master []byte, until time.Time) string {
	t.Helper()
	key, err := hkdf.Key(sha256.New, master, nil, "fencegate lease handle v2", sha256.Size)
	if err != nil {
		t.Fatal(err)
	}
	b := append([]byte{2, byte(len(id))}, id...)
	b = append(b, 0, 5)
	b = append(b, "owner"...)
	b = binary.BigEndian.AppendUint64(b, 34)
	b = binary.BigEndian.AppendUint64(b, uint64(until.UnixMilli()))
	b = append(b, "orders/1001"...)
	sum := hmac.New(sha256.New, key)
	sum.Write(b)
	return base64.RawURLEncoding.EncodeToString(sum.Sum(b))
}

func TestAHandleOfAGatewayBeforeIsUnderstood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		master := bytes.Repeat([]byte{1}, 32)
		var held time.Duration
		s := newServer(t, newFakes(), func(c *api.Config) {
			c.Handles = api.HandleKeys{Current: "k1", Master: map[string][]byte{"k1": master}}
			c.MaxLease, c.Ended = 2*time.Hour, func(d time.Duration, _ bool) { held = d }
		})
		if a := renew(t, s, handleV2(t, "k1", master, time.Now())); a.status != http.StatusGone {
			t.Errorf("at its end: %d %s", a.status, a.text)
		}
		handle := handleV2(t, "k1", master, time.Now().Add(23*time.Hour))
		if a := renew(t, s, handle); a.status != http.StatusOK {
			t.Errorf("%d %s", a.status, a.text)
		}
		if a := request(t, s, "POST", "/v1/leases/release", fmt.Sprintf(`{"handle":%q}`, handle)); a.status != http.StatusNoContent || held != time.Hour {
			t.Errorf("%d %s, held for %v", a.status, a.text, held)
		}
	})
}

// A handle is bound to its principal and its format version: changing either invalidates it.
func TestAHandleIsOfItsPrincipalAndItsVersion(t *testing.T) {
	t.Parallel()
	s, _, handles := holding(t, access.Rule{Resources: "*", Verbs: []access.Verb{access.Acquire, access.Manage}})
	own := handles.Replace("%H")
	raw, err := base64.RawURLEncoding.DecodeString(own)
	if err != nil {
		t.Fatal(err)
	}
	mine, others := []byte("\x02me"), []byte("\x07another")
	if raw[0] != 3 || bytes.Count(raw, mine) != 1 {
		t.Fatalf("the handle has another form: %q", raw)
	}
	before := bytes.Clone(raw)
	before[0] = 2
	for name, forged := range map[string][]byte{"the version before": before, "another's": bytes.Replace(raw, mine, others, 1), "nobody's": bytes.Replace(raw, mine, []byte{0}, 1)} {
		body := fmt.Sprintf(`{"handle":%q}`, base64.RawURLEncoding.EncodeToString(forged))
		for _, who := range []string{"me", "another"} {
			for _, path := range []string{"renew", "release", "credentials"} {
				a := request(t, s, "POST", "/v1/leases/"+path, body, "Authorization", "Bearer "+who)
				if a.status != http.StatusBadRequest || a.str("field") != "handle" {
					t.Errorf("%s, %s by %s: %d %s", name, path, who, a.status, a.text)
				}
			}
		}
	}
	if a := request(t, s, "POST", "/v1/leases/renew", fmt.Sprintf(`{"handle":%q}`, own), "Authorization", "Bearer me"); a.status != http.StatusOK {
		t.Errorf("as it was made: %d %s", a.status, a.text)
	}
}

func TestKeysAreValidatedOnce(t *testing.T) {
	t.Parallel()
	good := bytes.Repeat([]byte{1}, 32)
	for name, keys := range map[string]api.HandleKeys{
		"none":             {},
		"current missing":  {Current: "k2", Master: map[string][]byte{"k1": good}},
		"short key":        {Current: "k1", Master: map[string][]byte{"k1": good[:31]}},
		"empty id":         {Current: "", Master: map[string][]byte{"": good}},
		"short second key": {Current: "k1", Master: map[string][]byte{"k1": good, "k2": nil}},
	} {
		f := newFakes()
		if _, err := api.New(api.Config{Leases: leases{f}, Fences: f, Handles: keys}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

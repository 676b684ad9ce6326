package api_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

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
		}
	}
}

func TestRenewalsEndAtTheHandlesCap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		s := newServer(t, f, func(c *api.Config) { c.MaxLease = time.Hour })
		handle := aHandle(t, s)
		<-time.After(time.Hour - 10*time.Second) // of the bubble's clock
		if a := renew(t, s, handle); a.status != http.StatusOK || f.renewed != 10*time.Second {
			t.Errorf("shortly before the cap: %d, for %v; want the 10s that are left", a.status, f.renewed)
		}
		<-time.After(10 * time.Second)
		if a := renew(t, s, handle); a.status != http.StatusGone || a.str("code") != "lease_lost" {
			t.Errorf("at the cap: %d %s", a.status, a.text)
		}
		if a := request(t, s, "POST", "/v1/leases/release", fmt.Sprintf(`{"handle":%q}`, handle)); a.status != http.StatusNoContent {
			t.Errorf("release after the cap: %d %s", a.status, a.text)
		}
	})
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

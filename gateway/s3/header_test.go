//go:build unix

package s3_test

import (
	"strings"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// seal arms with a seal and returns the holder's header.
func (w *world) seal(resource string, token fence.Token) string {
	w.t.Helper()
	g := fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()}
	w.armHash(resource, token, g.Seal.Hash())
	return g.Presented()
}

func TestASignedTokenHeaderIsAGrantToo(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	rootCreds := credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}
	presented := w.seal("orders/1001", 5)
	_, secret, _ := strings.Cut(presented, ".")
	send := func(method, token, data string, change func(*raw)) (int, string) {
		r := raw{creds: rootCreds, method: method, path: "/orders/" + invoice, body: body(data), size: int64(len(data)), header: map[string]string{"Fencing-Token": token}}
		if change != nil {
			change(&r)
		}
		res, text := w.send(r)
		if strings.Contains(text, secret) {
			t.Errorf("the answer shows the seal: %s", text)
		}
		return res.StatusCode, text
	}
	if status, text := send("PUT", presented, "one", nil); status != 200 {
		t.Errorf("got %d %s", status, text)
	}
	if status, text := send("PUT", "0."+secret, "two", nil); status != 200 {
		t.Errorf("the seal without its token: got %d %s", status, text)
	}
	if n := w.count("SELECT count(*) FROM objects.versions WHERE token = 5"); n != 2 {
		t.Errorf("%d versions record token 5, want 2", n)
	}
	for name, c := range map[string]struct {
		token  string
		change func(*raw)
	}{
		"another seal":      {"5." + strings.Repeat("ab", 16), nil},
		"no seal":           {"5", nil},
		"malformed":         {"5.xyz", nil},
		"another token":     {"6." + secret, nil},
		"not signed":        {"", func(r *raw) { r.header, r.unsigned = nil, map[string]string{"Fencing-Token": presented} }},
		"beside a lease's":  {presented, func(r *raw) { r.creds = w.issue("orders/1001", 5) }},
		"of another object": {presented, func(r *raw) { r.path = "/orders/1002/x" }},
	} {
		if status, text := send("PUT", c.token, "x", c.change); status != 403 || !strings.Contains(text, "InvalidFencingToken") {
			t.Errorf("%s: got %d %s", name, status, text)
		}
	}
	if got := get(t, w.root(), "orders", invoice); got != "two" {
		t.Errorf("the object holds %q", got)
	}
	newer := w.seal("orders/1001", 6)
	if status, text := send("PUT", presented, "x", nil); status != 412 || !strings.Contains(text, "StaleFencingToken") {
		t.Errorf("stale: got %d %s", status, text)
	}
	if status, text := send("DELETE", newer, "", nil); status != 204 {
		t.Errorf("delete: got %d %s", status, text)
	}
}

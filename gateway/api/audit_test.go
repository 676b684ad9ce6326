package api_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
)

func TestTheLogSaysWhoDidWhat(t *testing.T) {
	t.Parallel()
	ops := access.Definition{Name: "ops", Tokens: []access.Digest{access.DigestOf("the token of ops")}, Rules: []access.Rule{
		{Resources: "orders/*", Verbs: []access.Verb{access.Acquire, access.Revoke}}, {Verbs: []access.Verb{access.Buckets}},
	}}
	all, err := access.New([]access.Definition{ops})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := newServer(t, newFakes(), func(c *api.Config) { c.Principals, c.Logger = all, slog.New(slog.NewTextHandler(&log, nil)) })
	for _, c := range []struct{ method, path, body, says string }{
		{"POST", "/v1/leases", `{"resource":"orders/1001"}`, `msg="a lease was acquired" resource=orders/1001 token=34`},
		{"POST", "/v1/resources/orders/1001/revoke", `{}`, `msg="a resource was taken from its holder" resource=orders/1001 token=35`},
		{"PUT", "/v1/buckets/a", `{"rule":"key"}`, `msg="a bucket was set by an operator" bucket=a`},
		{"GET", "/v1/sessions", "", `msg="a request was denied" verb=sessions`},
		{"POST", "/v1/leases", `{"resource":"stock/7"}`, `msg="a request was denied" verb=acquire resource=stock/7`},
	} {
		log.Reset()
		request(t, s, c.method, c.path, c.body, "Authorization", "Bearer the token of ops")
		if text := log.String(); !strings.Contains(text, c.says) || !strings.Contains(text, "audit.principal=ops") {
			t.Errorf("%s %s: the log says %s", c.method, c.path, text)
		}
		if text := log.String(); strings.Contains(text, "the token of") || strings.Contains(text, seal.Reveal()) {
			t.Errorf("%s %s: the log shows a secret: %s", c.method, c.path, text)
		}
	}
}

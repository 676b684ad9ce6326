//go:build unix

package s3_test

import (
	"crypto/md5"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// The answer to limited credentials about others' keys does not depend on whether the key exists.
func TestLimitedCredentialsLearnNoKeysOfOthersByWriting(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1002", 4), bucket, "1002/there", "data")
	put(t, w.lease("orders/1001", 4), bucket, "1001/there", "data")
	own, err := w.keys.Issue("orders/1001", 5, time.Now().Add(time.Hour), credentials.OwnKeys)
	if err != nil {
		t.Fatal(err)
	}
	w.arm("orders/1001", 5)
	answered := func(c rawCase, key string) int {
		res, _ := w.send(raw{creds: own, method: c.method, path: "/orders/" + key + c.query, body: strings.NewReader(c.body), size: int64(len(c.body)), header: c.header})
		return res.StatusCode
	}
	for _, c := range []rawCase{
		{method: "PUT", query: "?acl", header: map[string]string{"X-Amz-Acl": "private"}},
		{method: "PUT", query: "?legal-hold", body: "<LegalHold><Status>ON</Status></LegalHold>"},
		{method: "PUT", query: "?retention", body: "<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>2099-01-01T00:00:00Z</RetainUntilDate></Retention>"},
		{method: "POST", query: "?restore", body: "<RestoreRequest/>"},
		{method: "PUT", query: "?tagging", body: "<Tagging><TagSet/></Tagging>"},
		{method: "DELETE", query: "?tagging"},
		{method: "DELETE"},
		{method: "DELETE", query: "?versionId=none"},
		{method: "PUT", header: map[string]string{"If-None-Match": "*"}, body: "x"},
		{method: "PUT", header: map[string]string{"If-Match": `"none"`}, body: "x"},
		{method: "POST", query: "?uploads"},
	} {
		if c.body != "" && strings.HasPrefix(c.query, "?") {
			sum := md5.Sum([]byte(c.body))
			c.header = map[string]string{"Content-Md5": base64.StdEncoding.EncodeToString(sum[:])}
		}
		there, missing := answered(c, "1002/there"), answered(c, "1002/missing")
		if there != missing || there < 400 {
			t.Errorf("%s %s: %d where the key is there, %d where not", c.method, c.query, there, missing)
		}
	}
	if got := answered(rawCase{method: "PUT", query: "?acl", header: map[string]string{"X-Amz-Acl": "private"}}, "1001/there"); got != http.StatusOK {
		t.Errorf("its own key: %d", got)
	}
}

type rawCase struct {
	method, query, body string
	header              map[string]string
}

// Credentials can be limited to reading their resource's keys. Every other request gets AccessDenied.
func TestLimitedCredentialsReadTheirResourcesKeysOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	for _, resource := range []string{"1001", "1002", "10010"} {
		put(t, w.lease("orders/"+resource, 4), bucket, resource+"/a", "data")
	}
	w.prefixRule(bucket, "1001/deep/", "key")
	own := func(terms credentials.Terms) credentials.Credentials {
		c, err := w.keys.Issue("orders/1001", 5, time.Now().Add(time.Hour), terms)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	w.arm("orders/1001", 5)
	for _, c := range []struct {
		method, path string
		source       string
		status       int // with OwnKeys
		readOnly     int // with ReadOnly and OwnKeys; 0: the same
	}{
		{"GET", "/orders/1001/a", "", 200, 0},
		{"HEAD", "/orders/1001/a", "", 200, 0},
		{"GET", "/orders/1001/a?tagging", "", 200, 0},
		{"GET", "/orders/1001/a?attributes", "", 400, 0}, // it names no attributes
		{"GET", "/orders/1002/a", "", 403, 0},
		{"HEAD", "/orders/1002/a", "", 403, 0},
		{"GET", "/orders/10010/a", "", 403, 0},
		{"GET", "/orders/1001/deep/x", "", 403, 0},
		{"GET", "/orders/1002/a?acl", "", 403, 0},
		{"GET", "/", "", 403, 0},
		{"GET", "/orders", "", 403, 0},
		{"GET", "/orders?prefix=1001", "", 403, 0},
		{"GET", "/orders?prefix=1001/", "", 403, 0}, // some of the keys have another rule
		{"GET", "/orders?prefix=1001/a", "", 200, 0},
		{"GET", "/orders?list-type=2&prefix=1001/a/", "", 200, 0},
		{"GET", "/orders?list-type=2&prefix=1002/", "", 403, 0},
		{"GET", "/orders?versions&prefix=1001/a", "", 200, 0},
		{"GET", "/orders?versions", "", 403, 0},
		{"GET", "/orders?uploads&prefix=1002/", "", 403, 0},
		{"GET", "/orders?cors", "", 403, 0},
		{"HEAD", "/orders", "", 200, 0},
		{"GET", "/orders?location", "", 200, 0},
		{"PUT", "/orders/1001/copy", "/orders/1001/a", 200, 403},
		{"PUT", "/orders/1001/copy", "/orders/1002/a", 403, 0},
		{"PUT", "/orders/1001/new", "", 200, 403},
		{"PUT", "/orders/1002/new", "", 403, 0},
		{"DELETE", "/orders/1001/new", "", 204, 403},
		{"POST", "/orders/1001/new?uploads", "", 200, 403},
	} {
		for name, terms := range map[string]credentials.Terms{"own keys": credentials.OwnKeys, "and read only": credentials.OwnKeys | credentials.ReadOnly} {
			want := c.status
			if terms.Has(credentials.ReadOnly) && c.readOnly != 0 {
				want = c.readOnly
			}
			r := raw{creds: own(terms), method: c.method, path: c.path}
			if c.source != "" {
				r.header = map[string]string{"X-Amz-Copy-Source": c.source}
			}
			res, text := w.send(r)
			if res.StatusCode != want || want == 403 && c.method != "HEAD" && !strings.Contains(text, "AccessDenied") && !strings.Contains(text, "WrongFencingResource") {
				t.Errorf("%s: %s %s from %q: got %d %s, want %d", name, c.method, c.path, c.source, res.StatusCode, text, want)
			}
		}
	}
	if n := w.count("SELECT count(*) FROM objects.pointers WHERE key LIKE '1002/%'"); n != 1 {
		t.Errorf("%d objects of another resource", n)
	}
}

func TestAPrefixIsCoveredWhereEachOfItsKeysNeedsTheResource(t *testing.T) {
	t.Parallel()
	whole := objects.Bucket{Name: "orders", Rule: objects.BucketRule()}
	parts := objects.Bucket{Name: "orders", Rule: objects.PrefixRule(1)}
	deep := objects.Bucket{Name: "orders", Rule: objects.PrefixRule(1), Prefixes: []objects.PrefixRuleOf{{Prefix: "1001/x/", Rule: objects.KeyRule()}}}
	for _, c := range []struct {
		b                objects.Bucket
		prefix, resource string
		want             bool
	}{
		{whole, "", "orders", true},
		{whole, "", "orders/1001", false},
		{parts, "", "orders/1001", false},
		{parts, "1001", "orders/1001", false},
		{parts, "1001/", "orders/1001", true},
		{parts, "1001/x", "orders/1001", true},
		{parts, "1002/", "orders/1001", false},
		{deep, "1001/", "orders/1001", false},
		{deep, "1001/y", "orders/1001", true},
		{deep, "1001/x/", "orders/1001/x/", false},
		{objects.Bucket{Name: "orders", Rule: objects.KeyRule()}, "a/", "orders/a/", false},
		{objects.Bucket{Name: "orders", Rule: objects.NoRule()}, "", "", false},
	} {
		if got := c.b.Covers(c.prefix, c.resource); got != c.want {
			t.Errorf("%q of %q under %s: got %v", c.prefix, c.resource, c.b.Rule, got)
		}
	}
}

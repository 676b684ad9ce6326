//go:build unix

package s3_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

func (w *world) prefixRule(bucket, prefix, text string) {
	w.t.Helper()
	rule, err := objects.ParseRule(text)
	if err == nil {
		err = w.srv.Catalog().SetPrefixRule(w.t.Context(), bucket, prefix, rule)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// minted sends a PUT that root signs, with an externally issued token.
func (w *world) minted(path, token, data string) (int, string) {
	w.t.Helper()
	r := raw{
		creds: credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}, method: "PUT", path: path,
		body: body(data), size: int64(len(data)), header: map[string]string{},
	}
	if token != "" {
		r.header["Fencing-Token"] = token
	}
	res, text := w.send(r)
	return res.StatusCode, text
}

func TestTheRuleNoneAsksForNoToken(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.prefixRule(bucket, "tmp/", "none")
	w.prefixRule(bucket, "tmp/kept/", "prefix:2")
	put(t, w.root(), bucket, "tmp/a", "root")
	put(t, w.lease("orders/elsewhere", 1), bucket, "tmp/a", "any lease")
	if got := get(t, w.root(), bucket, "tmp/a"); got != "any lease" {
		t.Errorf("got %q", got)
	}
	m, err := w.root().CreateMultipartUpload(t.Context(), &awss3.CreateMultipartUploadInput{Bucket: &bucket, Key: aws.String("tmp/m")})
	if err != nil {
		t.Error(err)
	}
	if _, err := w.root().AbortMultipartUpload(t.Context(), &awss3.AbortMultipartUploadInput{Bucket: &bucket, Key: aws.String("tmp/m"), UploadId: m.UploadId}); err != nil {
		t.Error(err)
	}
	remove(t, w.root(), bucket, "tmp/a", nil)
	for _, key := range []string{"tmp", "tm/a", "1001/a", "tmp/kept/a"} { // other rules
		_, err := tryPut(t, w.root(), bucket, key, "x")
		wantRefused(t, err, 403, "MissingFencingToken")
	}
	put(t, w.lease("orders/tmp/kept", 1), bucket, "tmp/kept/a", "x")
	if status, text := w.minted("/orders/tmp/b", "7", "x"); status != 403 {
		t.Errorf("a token that nothing checks: got %d %s", status, text)
	}
	if n := w.count("SELECT count(*) FROM objects.versions WHERE token = 0"); n != 3 {
		t.Errorf("%d versions are recorded without a token, want 3", n)
	}
}

func TestTheRuleMonotoneTakesRisingTokensOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.prefixRule(bucket, "events/", "monotone:prefix:2")
	for _, step := range []struct {
		path, token string
		status      int
	}{
		{"events/p0/x", "7", 200},
		{"events/p0/y", "7", 200},
		{"events/p0/x", "9", 200},
		{"events/p0/y", "8", 412},
		{"events/p0/x", "7", 412},
		{"events/p1/x", "3", 200}, // a resource of its own
		{"events/p0/x", "", 403},
		{"events/p0/x", "0", 403},
		{"events/p0/x", "-1", 403},
		{"events/p0/x", "10.0123456789abcdef0123456789abcdef", 403},
		{"events/p0/x", "9007199254740992", 403},
		{"1001/x", "7", 403}, // the bucket's own rule accepts no bare number
	} {
		if status, text := w.minted("/orders/"+step.path, step.token, step.token); status != step.status {
			t.Errorf("%s with token %q: got %d %s, want %d", step.path, step.token, status, text, step.status)
		}
	}
	if a, b := get(t, w.root(), bucket, "events/p0/x"), get(t, w.root(), bucket, "events/p0/y"); a != "9" || b != "7" {
		t.Errorf("got %q and %q", a, b)
	}
	// A monotone rule does not accept a lease's credentials, and a bare number does not replace the lease's grant.
	_, err := tryPut(t, w.lease("orders/events/p2", 5), bucket, "events/p2/x", "lease")
	wantRefused(t, err, 403, "InvalidFencingToken")
	if status, text := w.minted("/orders/events/p2/x", "6", "number"); status != 403 {
		t.Errorf("a number against a lease: got %d %s", status, text)
	}
	if n := w.count("SELECT token FROM fence.resources WHERE resource = 'orders/events/p2'"); n != 5 {
		t.Errorf("the lease's fence stands at %d", n)
	}
	if n := w.pending(); n != 0 {
		t.Errorf("%d blobs are pending", n)
	}
}

// If a rule changes during an upload, the rule at its commit decides.
func TestAnUploadIsJudgedByTheRuleAtItsCommit(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.prefixRule(bucket, "tmp/", "none")
	slow := newHalf(3 << 20)
	done := w.async(raw{
		creds: credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}, method: "PUT", path: "/orders/tmp/x", body: slow, size: 3 << 20,
	})
	w.underWay(slow)
	if err := w.srv.Catalog().DropPrefixRule(t.Context(), bucket, "tmp/"); err != nil {
		t.Fatal(err)
	}
	close(slow.resume)
	if a := <-done; a.status != 403 {
		t.Errorf("got %+v", a)
	}
	w.nothingLeft(0, 0)
}

func TestRulesOfPrefixesAreChangedOnlyWhereNothingLies(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.prefixRule(bucket, "tmp/", "none")
	put(t, w.root(), bucket, "tmp/a", "x")
	w.prefixRule(bucket, "tmp/", "none") // no change
	for _, err := range []error{
		w.srv.Catalog().SetPrefixRule(t.Context(), bucket, "tmp/", objects.KeyRule()), w.srv.Catalog().SetPrefixRule(t.Context(), bucket, "tm", objects.KeyRule()),
		w.srv.Catalog().DropPrefixRule(t.Context(), bucket, "tmp/"),
	} {
		if !errors.Is(err, objects.ErrRuleInUse) {
			t.Errorf("got %v", err)
		}
	}
	if err := w.srv.Catalog().SetPrefixRule(t.Context(), "nowhere", "tmp/", objects.KeyRule()); !errors.Is(err, objects.ErrNoBucket) {
		t.Errorf("got %v", err)
	}
	for _, prefix := range []string{"", "a\x00b", "a\xffb"} {
		if err := w.srv.Catalog().SetPrefixRule(t.Context(), bucket, prefix, objects.KeyRule()); err == nil {
			t.Errorf("prefix %q was accepted", prefix)
		}
	}
	for _, text := range []string{"none", "monotone", "monotone:key", "monotone:prefix:3", "bucket", "prefix:1", "key"} {
		if r, err := objects.ParseRule(text); err != nil || r.String() != text {
			t.Errorf("%s reads as %s, %v", text, r, err)
		}
	}
	for _, bad := range []string{"monotone:", "monotone:none", "monotone:monotone", "none:key", "None", "prefix:0", "monotone:prefix:65"} {
		if r, err := objects.ParseRule(bad); err == nil {
			t.Errorf("%q was read as %s", bad, r)
		}
	}
}

func TestRulesReadBackAndAgreeWithTheDatabase(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for text, want := range map[string]map[string]string{
		"bucket":   {"1001/a.txt": "orders", "a": "orders"},
		"key":      {"1001/a.txt": "orders/1001/a.txt", "a": "orders/a", "a//b": "orders/a//b"},
		"prefix:1": {"1001/a.txt": "orders/1001", "a": "orders/a", "a//b": "orders/a", "/a": "orders/", "a/": "orders/a"},
		"prefix:2": {"1001/a.txt": "orders/1001/a.txt", "1/2/3": "orders/1/2", "a": "orders/a", "a//b": "orders/a/", "ä/ö/ü": "orders/ä/ö"},
	} {
		rule, err := objects.ParseRule(text)
		if err != nil || rule.String() != text {
			t.Errorf("ParseRule(%q) = %v, %v", text, rule, err)
		}
		if _, err := w.admin.Exec(t.Context(), "DELETE FROM objects.buckets"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.srv.Catalog().EnsureBucket(t.Context(), "orders", rule); err != nil {
			t.Fatal(err)
		}
		for key, resource := range want {
			if got := rule.Resource("orders", key); got != resource {
				t.Errorf("%s: %q needs %q, want %q", text, key, got, resource)
			}
			var got string
			if err := w.admin.QueryRow(t.Context(), "SELECT objects.resource_of(name, depth, $1) FROM objects.buckets", key).Scan(&got); err != nil || got != resource {
				t.Errorf("%s: in the database %q needs %q, %v; want %q", text, key, got, err, resource)
			}
		}
	}
	for _, text := range []string{"", "prefix", "prefix:", "prefix:0", "prefix:-1", "prefix:01", "prefix:65", "prefix:x", "Bucket"} {
		if _, err := objects.ParseRule(text); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("ParseRule(%q): got %v, want ErrInvalid", text, err)
		}
	}
}

func TestABucketsRuleCannotChangeUnderItsObjects(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ensure := func(name string, rule objects.Rule) (bool, error) {
		return w.srv.Catalog().EnsureBucket(t.Context(), name, rule)
	}
	if created, err := ensure("orders", objects.PrefixRule(1)); err != nil || !created {
		t.Errorf("got %v, %v", created, err)
	}
	if created, err := ensure("orders", objects.KeyRule()); err != nil || created {
		t.Errorf("an empty bucket: got %v, %v", created, err)
	}
	put(t, w.lease("orders/1001/invoice.txt", 5), "orders", invoice, "x")
	if _, err := ensure("orders", objects.BucketRule()); !errors.Is(err, objects.ErrRuleInUse) {
		t.Errorf("got %v, want ErrRuleInUse", err)
	}
	if created, err := ensure("orders", objects.KeyRule()); err != nil || created {
		t.Errorf("the same rule again: got %v, %v", created, err)
	}
	for _, name := range []string{"", "ab", "UPPER", "-abc", "abc-", "a_b", strings.Repeat("a", 64), "a/b"} {
		if _, err := ensure(name, objects.BucketRule()); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("bucket %q: got %v, want ErrInvalid", name, err)
		}
	}
}

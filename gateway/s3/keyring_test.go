//go:build unix

package s3_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/s3"
)

func TestRulesReadBackAndAgreeWithTheDatabase(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for text, want := range map[string]map[string]string{
		"bucket":   {"1001/a.txt": "orders", "a": "orders"},
		"key":      {"1001/a.txt": "orders/1001/a.txt", "a": "orders/a", "a//b": "orders/a//b"},
		"prefix:1": {"1001/a.txt": "orders/1001", "a": "orders/a", "a//b": "orders/a", "/a": "orders/", "a/": "orders/a"},
		"prefix:2": {"1001/a.txt": "orders/1001/a.txt", "1/2/3": "orders/1/2", "a": "orders/a", "a//b": "orders/a/", "ä/ö/ü": "orders/ä/ö"},
	} {
		rule, err := s3.ParseRule(text)
		if err != nil || rule.String() != text {
			t.Errorf("ParseRule(%q) = %v, %v", text, rule, err)
		}
		if _, err := w.admin.Exec(t.Context(), "DELETE FROM objects.buckets"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.srv.EnsureBucket(t.Context(), "orders", rule); err != nil {
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
		if _, err := s3.ParseRule(text); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("ParseRule(%q): got %v, want ErrInvalid", text, err)
		}
	}
}

func TestABucketsRuleCannotChangeUnderItsObjects(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ensure := func(name string, rule s3.Rule) (bool, error) { return w.srv.EnsureBucket(t.Context(), name, rule) }
	if created, err := ensure("orders", s3.PrefixRule(1)); err != nil || !created {
		t.Errorf("got %v, %v", created, err)
	}
	if created, err := ensure("orders", s3.KeyRule()); err != nil || created {
		t.Errorf("an empty bucket: got %v, %v", created, err)
	}
	put(t, w.lease("orders/1001/invoice.txt", 5), "orders", invoice, "x")
	if _, err := ensure("orders", s3.BucketRule()); !errors.Is(err, s3.ErrRuleInUse) {
		t.Errorf("got %v, want ErrRuleInUse", err)
	}
	if created, err := ensure("orders", s3.KeyRule()); err != nil || created {
		t.Errorf("the same rule again: got %v, %v", created, err)
	}
	for _, name := range []string{"", "ab", "UPPER", "-abc", "abc-", "a_b", strings.Repeat("a", 64), "a/b"} {
		if _, err := ensure(name, s3.BucketRule()); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("bucket %q: got %v, want ErrInvalid", name, err)
		}
	}
}

func TestKeyringsAreCheckedAndShowNoKey(t *testing.T) {
	t.Parallel()
	key, other := strings.Repeat("4f", 32), strings.Repeat("50", 32)
	for _, text := range []string{"", " ", key, "a:" + key[:62], "a:xyz", "a b:" + key, ":" + key, "a:" + key + ",a:" + other, strings.Repeat("k", 33) + ":" + key, "ä:" + key} {
		_, err := s3.ParseKeyring(text)
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("ParseKeyring(%q): got %v, want ErrInvalid", text, err)
		}
		if err != nil && strings.Contains(err.Error(), key[:16]) {
			t.Errorf("the error shows a key: %v", err)
		}
	}
	k, err := s3.ParseKeyring("new:" + other + "\nold:" + key)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := k.Issue("orders/1001", 5, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		shown := fmt.Sprintf(format+format, k, creds)
		if strings.Contains(shown, creds.SecretAccessKey) || strings.Contains(shown, "4f4f") || strings.Contains(shown, "79, 79") {
			t.Errorf("%s shows a secret: %s", format, shown)
		}
	}
	for _, bad := range []struct {
		resource string
		token    fence.Token
	}{{"", 1}, {"a*", 1}, {"a", 0}, {"a", -1}} {
		if _, err := k.Issue(bad.resource, bad.token, time.Now()); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("Issue(%q, %d): got %v, want ErrInvalid", bad.resource, bad.token, err)
		}
	}
}

func TestCredentialsOutliveARotationOfTheMasterKey(t *testing.T) {
	t.Parallel()
	key, other := strings.Repeat("4f", 32), strings.Repeat("50", 32)
	before, err := s3.ParseKeyring("old:" + key)
	if err != nil {
		t.Fatal(err)
	}
	rotated, err := s3.ParseKeyring("new:" + other + ",old:" + key)
	if err != nil {
		t.Fatal(err)
	}
	w := setup(t, func(c *config) { c.Keys = rotated })
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	for _, k := range []*s3.Keyring{before, rotated} {
		creds, err := k.Issue("orders/1001", 5, time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if len(creds.AccessKeyID) != 20 || !strings.HasPrefix(creds.AccessKeyID, "ASIA") {
			t.Errorf("access key %s", creds.AccessKeyID)
		}
		put(t, w.client(creds), bucket, invoice, "x")
	}
}

func TestTheServerNeedsItsParts(t *testing.T) {
	t.Parallel()
	for _, deps := range []s3.Deps{{}, {Store: dir(t)}, {Keys: keyring(t), Store: dir(t)}} {
		if _, err := s3.New(deps, s3.Options{}); err == nil {
			t.Errorf("New(%+v) succeeded", deps)
		}
	}
}

package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

func TestBucketsAreSetAndShown(t *testing.T) {
	t.Parallel()
	f := newFakes()
	s := newServer(t, f)
	for _, c := range []struct {
		method, path, body string
		status             int
		want               []string
	}{
		{"PUT", "/v1/buckets/orders", `{"rule":"key","keep":"30d"}`, 201, []string{"ensure", "orders", "key", "30d"}},
		{"PUT", "/v1/buckets/orders", `{"keep":"all"}`, 200, []string{"ensure", "orders", "", "all"}},
		{"GET", "/v1/buckets/orders", "", 200, nil},
		{"PUT", "/v1/buckets/a%2Fb%25", `{"keep":"all"}`, 200, []string{"ensure", "a/b%", "", "all"}},
		{"PUT", "/v1/buckets/a%25b", `{"keep":"all"}`, 200, []string{"ensure", "a%b", "", "all"}},
		{"PUT", "/v1/buckets/a%252Fb", `{"keep":"all"}`, 200, []string{"ensure", "a%2Fb", "", "all"}},
		{"PUT", "/v1/buckets/a%2Fb/rules", `{"prefix":"c/","rule":"none"}`, 200, []string{"set", "a/b", "c/", "none"}},
		{"DELETE", "/v1/buckets/a%2Fb/rules?prefix=c%2F", "", 200, []string{"drop", "a/b", "c/"}},
		{"GET", "/v1/buckets?after=x&limit=2", "", 200, []string{"list", "x", "2"}},
		{"GET", "/v1/buckets", "", 200, []string{"list", "", "100"}},
		{"PUT", "/v1/buckets/orders/rules", `{"prefix":"a/ b","rule":"none"}`, 200, []string{"set", "orders", "a/ b", "none"}},
		{"DELETE", "/v1/buckets/orders/rules?prefix=a%2F+b", "", 200, []string{"drop", "orders", "a/ b"}},
		{"PUT", "/v1/buckets/orders", `{}`, 400, nil},
		{"PUT", "/v1/buckets/orders", `{"prefix":"a"}`, 400, nil},
		{"GET", "/v1/buckets?limit=0", "", 400, nil},
		{"GET", "/v1/buckets?limit=1001", "", 400, nil},
		{"GET", "/v1/buckets?prefix=a", "", 400, nil},
		{"GET", "/v1/buckets?after=a&after=b", "", 400, nil},
		{"DELETE", "/v1/buckets/orders/rules", "", 400, nil},
		{"DELETE", "/v1/buckets/orders/rules?prefix=", "", 400, nil},
		{"DELETE", "/v1/buckets/orders/rules?prefix=a&prefix=b", "", 400, nil},
	} {
		f.buckets = nil
		a := request(t, s, c.method, c.path, c.body)
		if a.status != c.status || !slices.Equal(f.buckets, c.want) {
			t.Errorf("%s %s %s: %d %s, called %q; want %d, %q", c.method, c.path, c.body, a.status, a.text, f.buckets, c.status, c.want)
		}
	}
	if a := request(t, s, "GET", "/v1/buckets/a%2Fb", ""); a.str("bucket") != "a/b" {
		t.Errorf("another name is shown than was asked for: %s", a.text)
	}
	if a := request(t, s, "GET", "/v1/buckets?limit=2", ""); a.str("next") != "b" {
		t.Errorf("a full page: %s", a.text)
	}
	for err, want := range map[error]int{
		fmt.Errorf("%w: x", api.ErrNotFound): 404, fmt.Errorf("%w: x", api.ErrConflict): 409, &leasing.UnavailableError{Part: "postgresql", Cause: errors.New("x")}: 503,
	} {
		f.err = err
		for _, call := range [][3]string{{"PUT", "/v1/buckets/orders", `{"keep":"all"}`}, {"GET", "/v1/buckets/orders", ""}, {"PUT", "/v1/buckets/orders/rules", `{"prefix":"a","rule":"none"}`}, {"DELETE", "/v1/buckets/orders/rules?prefix=a", ""}} {
			if a := send(t, s, call[0], call[1], call[2]); a.status != want {
				t.Errorf("%s %s with %v: %d %s", call[0], call[1], err, a.status, a.text)
			}
		}
	}
}

func TestBucketsNeedTheTokenAndTheS3Port(t *testing.T) {
	t.Parallel()
	guarded := newServer(t, newFakes(), func(c *api.Config) { c.BearerToken = "t" })
	without := newServer(t, newFakes(), func(c *api.Config) { c.Buckets = nil })
	for _, call := range [][3]string{
		{"GET", "/v1/buckets", ""},
		{"GET", "/v1/buckets/orders", ""},
		{"PUT", "/v1/buckets/orders", `{"keep":"all"}`},
		{"PUT", "/v1/buckets/orders/rules", `{"prefix":"a","rule":"none"}`},
		{"DELETE", "/v1/buckets/orders/rules?prefix=a", ""},
	} {
		if a := request(t, guarded, call[0], call[1], call[2]); a.status != http.StatusUnauthorized {
			t.Errorf("%s %s: %d %s", call[0], call[1], a.status, a.text)
		}
		if a := request(t, without, call[0], call[1], call[2]); a.status != http.StatusNotImplemented {
			t.Errorf("%s %s without S3: %d %s", call[0], call[1], a.status, a.text)
		}
	}
}

// unreadableBuckets are buckets that can be set and not read.
type unreadableBuckets struct{ *fakes }

func (unreadableBuckets) InspectBucket(context.Context, string) (wire.Bucket, error) {
	return wire.Bucket{}, &leasing.UnavailableError{Part: wire.PartPostgres}
}

func TestABucketThatWasSetAndCannotBeReadIsNotToldAsUndone(t *testing.T) {
	t.Parallel()
	f := newFakes()
	s := newServer(t, f, func(c *api.Config) { c.Buckets = unreadableBuckets{f} })
	for _, r := range [][3]string{
		{"PUT", "/v1/buckets/orders", `{"rule":"key"}`},
		{"PUT", "/v1/buckets/orders/rules", `{"prefix":"a/","rule":"none"}`},
		{"DELETE", "/v1/buckets/orders/rules?prefix=a/", ""},
	} {
		if a := request(t, s, r[0], r[1], r[2]); a.status != http.StatusServiceUnavailable || a.str("hint") != "It was done, but the bucket could not be read afterwards." {
			t.Errorf("%s %s: %d %s", r[0], r[1], a.status, a.text)
		}
	}
	if a := request(t, s, "GET", "/v1/buckets/orders", ""); a.str("hint") != "Nothing was done. Try again later." {
		t.Errorf("%d %s", a.status, a.text)
	}
}

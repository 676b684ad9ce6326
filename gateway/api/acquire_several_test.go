package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/wire"
)

func TestSeveralLeasesComeInTheOrderOfTheRequest(t *testing.T) {
	t.Parallel()
	f := newFakes()
	s := newServer(t, f)
	a := request(t, s, "POST", "/v1/leases/all", `{"resources":["b","a"],"ttl":"20s","holder":"worker-a"}`)
	all, _ := a.body["leases"].([]any)
	if a.status != http.StatusCreated || len(all) != 2 || f.wait != leasing.AtOnce {
		t.Fatalf("%d %s", a.status, a.text)
	}
	for i, want := range []string{"b", "a"} {
		lease, _ := all[i].(map[string]any)
		if lease["resource"] != want || lease["ttl_ms"] != 20000. || lease["grant"] != "34."+seal.Reveal() {
			t.Errorf("lease %d: %v", i, lease)
		}
		handle, _ := lease["handle"].(string)
		if a := request(t, s, "POST", "/v1/leases/release", fmt.Sprintf(`{"handle":%q}`, handle)); a.status != http.StatusNoContent {
			t.Errorf("release: %d %s", a.status, a.text)
		}
		if ref := <-f.released; ref.Resource != want {
			t.Errorf("released %q, want %q", ref.Resource, want)
		}
	}
	if a := request(t, s, "POST", "/v1/leases/all", `{"resources":["b"],"wait":"5s"}`); a.status != http.StatusCreated || f.wait != leasing.UntilDone {
		t.Errorf("with a wait: %d %s", a.status, a.text)
	}
}

func TestBadRequestsForSeveralLeasesReachNoLock(t *testing.T) {
	t.Parallel()
	f := newFakes()
	s := newServer(t, f)
	f.acquire = func(context.Context, leasing.Request) (leasing.Lease, error) {
		t.Error("malformed input reached the lock")
		return leasing.Lease{}, errors.New("no")
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprintf("%q", fmt.Sprint(i))
	}
	for body, field := range map[string]string{
		`{}`:                          "resources",
		`{"resources":[]}`:            "resources",
		`{"resources":["a","b","a"]}`: "resources",
		`{"resources":[` + strings.Join(many, ",") + `]}`: "resources",
		`{"resources":["a",""]}`:                          "resource",
		`{"resources":["a","b*"]}`:                        "resource",
		`{"resources":"a"}`:                               "body",
		`{"resources":["a"],"resource":"a"}`:              "body",
		`{"resources":["a"],"ttl":"1h"}`:                  "ttl",
		`{"resources":["a"],"wait":"-1s"}`:                "wait",
		`{"resources":["a"],"holder":"a\nb"}`:             "holder",
	} {
		if a := request(t, s, "POST", "/v1/leases/all", body); a.status != http.StatusBadRequest || a.str("field") != field {
			t.Errorf("%.40s: %d %s; want field %s", body, a.status, a.text, field)
		}
	}
}

func TestARefusalOfSeveralNamesTheResource(t *testing.T) {
	t.Parallel()
	f := newFakes()
	f.acquire = func(context.Context, leasing.Request) (leasing.Lease, error) {
		return leasing.Lease{}, &leasing.HeldError{Resource: "b", Holder: "worker-b", RetryAfter: time.Second}
	}
	a := request(t, newServer(t, f), "POST", "/v1/leases/all", `{"resources":["a","b"]}`)
	if a.status != http.StatusConflict || a.str("code") != "held" || a.str("resource") != "b" || a.str("holder") != "worker-b" {
		t.Errorf("%d %s", a.status, a.text)
	}
}

// With a key a repeat of the request may find the leases.
func TestSeveralLeasesGrantedAfterTheClientWentAreGivenBackUnlessTheyHaveAKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ headers, want []string }{{nil, []string{"a", "b"}}, {[]string{wire.IdempotencyKey, aKey}, nil}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakes()
			s := newServer(t, f)
			grant := f.acquire
			f.acquire = func(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
				<-ctx.Done()
				return grant(ctx, r)
			}
			ctx, leave := context.WithTimeout(t.Context(), 10*time.Second) // the client's patience
			defer leave()
			resp, err := post(ctx, transportTo(t, s), "http://localhost/v1/leases/all", `{"resources":["a","b"],"wait":"60s"}`, c.headers...)
			if err == nil {
				_ = resp.Body.Close()
				t.Errorf("the client was answered: %d", resp.StatusCode)
			}
			synctest.Wait()
			close(f.released)
			var released []string
			for ref := range f.released {
				released = append(released, ref.Resource)
			}
			if !slices.Equal(released, c.want) {
				t.Errorf("with %q: released %q, want %q", c.headers, released, c.want)
			}
		})
	}
}

package api_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
)

func TestAPrincipalThatAsksTooOftenIsTurnedAwayAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		define := func(name string) access.Definition {
			return access.Definition{Name: name, Tokens: []access.Digest{access.DigestOf(name)}, Rules: []access.Rule{{Resources: "*", Verbs: access.Verbs()}}}
		}
		all, err := access.New([]access.Definition{define("eager"), define("calm")})
		if err != nil {
			t.Fatal(err)
		}
		s := newServer(t, newFakes(), func(c *api.Config) { c.Principals, c.PrincipalRate = all, 2 })
		ask := func(of, path, body string) answer {
			method := "POST"
			if body == "" {
				method = "GET"
			}
			return request(t, s, method, path, body, "Authorization", "Bearer "+of)
		}
		handle := ask("eager", "/v1/leases", `{"resource":"orders/1001"}`).str("handle")
		if a := ask("eager", "/v1/endpoints", ""); a.status != http.StatusOK {
			t.Errorf("the second request: %d %s", a.status, a.text)
		}
		a := ask("eager", "/v1/endpoints", "")
		if a.status != http.StatusTooManyRequests || a.str("code") != "rate_limited" || a.header.Get("Retry-After") != "1" {
			t.Errorf("the third in a second: %d %s, Retry-After %q", a.status, a.text, a.header.Get("Retry-After"))
		}
		for _, path := range []string{"/v1/leases/renew", "/v1/leases/release"} {
			if a := ask("eager", path, `{"handle":"`+handle+`"}`); a.status >= 300 {
				t.Errorf("%s while it asks too often: %d %s", path, a.status, a.text)
			}
		}
		if a := ask("calm", "/v1/endpoints", ""); a.status != http.StatusOK {
			t.Errorf("another principal: %d %s", a.status, a.text)
		}
		<-time.After(500 * time.Millisecond) // on the bubble's clock
		if a := ask("eager", "/v1/endpoints", ""); a.status != http.StatusOK {
			t.Errorf("half a second later: %d %s", a.status, a.text)
		}
	})
}

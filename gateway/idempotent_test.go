//go:build unix

package gateway_test

import (
	"net/http"
	"testing"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
)

// Two gateways of a group give the same lease for a repeated key, on Redis and PostgreSQL, and on PostgreSQL alone.
func TestARepeatAtAnotherGatewayIsTheSameLease(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*gateway.Config){
		"redis": func(*gateway.Config) {},
		"postgres": func(c *gateway.Config) {
			c.PostgresLeases, c.RedisNodes, c.InitNodes, c.DatabaseKeys, c.KeyPrefix = true, nil, false, false, ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, testenv.Postgres(t))
			change(&cfg)
			one, other := start(t, cfg), start(t, cfg)
			key := []string{"Idempotency-Key", "0123456789abcdef"}
			body := map[string]any{"resource": "orders/1", "ttl": "40s", "holder": "worker-a"}
			first := one.want(http.StatusCreated, "POST", "/v1/leases", body, key...)
			again := other.want(http.StatusCreated, "POST", "/v1/leases", body, key...)
			if first.Body["grant"] != again.Body["grant"] || first.Body["token"] != again.Body["token"] {
				t.Errorf("another lease: token %v and %v", first.Body["token"], again.Body["token"])
			}
			other.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]any{"handle": first.Body["handle"]})
			other.want(http.StatusConflict, "POST", "/v1/leases", body)
			other.want(http.StatusConflict, "POST", "/v1/leases", body, "Idempotency-Key", "another-0123456789")
			one.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]any{"handle": again.Body["handle"]})
			over := other.do("POST", "/v1/leases", body, key...) // if another holder came in between, it is a new lease
			if over.Body["code"] != "lease_lost" {
				t.Errorf("a lease that is over: %v", over.Body)
			}
			several := map[string]any{"resources": []string{"a", "b"}, "ttl": "40s"}
			all := one.want(http.StatusCreated, "POST", "/v1/leases/all", several, "Idempotency-Key", "several-0123456789")
			same := other.want(http.StatusCreated, "POST", "/v1/leases/all", several, "Idempotency-Key", "several-0123456789")
			for i, lease := range all.Body["leases"].([]any) {
				if lease.(map[string]any)["grant"] != same.Body["leases"].([]any)[i].(map[string]any)["grant"] {
					t.Errorf("lease %d is another", i)
				}
			}
		})
	}
}

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

// Both gateways wait for the resource; the answer of the first one may be lost.
func TestARepeatThatWaitsAtAnotherGatewayIsTheSameLease(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	one, other := start(t, cfg), start(t, cfg)
	before := one.acquire("orders/1", "60s")
	ask := func(c *client, wait string) <-chan answer {
		got := make(chan answer, 1)
		go func() {
			got <- c.do("POST", "/v1/leases", map[string]any{"resource": "orders/1", "ttl": "40s", "holder": "worker-a", "wait": wait}, "Idempotency-Key", "0123456789abcdef")
		}()
		return got
	}
	wait := func(n float64) {
		t.Helper()
		testenv.Eventually(t, "requests wait", func() bool {
			lock, _ := one.do("GET", "/v1/resources/orders%2F1", nil).Body["lock"].(map[string]any)
			return lock["waiters"] == n
		})
	}
	first := ask(one, "30s")
	wait(1)
	repeat := ask(other, "8s")
	wait(2)
	one.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]any{"handle": before.handle})
	got, again := <-first, <-repeat
	if got.Status != http.StatusCreated || again.Status != http.StatusCreated || got.Body["grant"] != again.Body["grant"] {
		t.Errorf("%d, token %v; the repeat: %d, token %v, code %v", got.Status, got.Body["token"], again.Status, again.Body["token"], again.Body["code"])
	}
}

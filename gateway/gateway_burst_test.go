package gateway_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
)

// The first requests of a gateway arrive together; their new connections must not raise a doubt about PostgreSQL.
func TestAColdGatewayServesABurst(t *testing.T) {
	t.Parallel()
	c := start(t, config(t, testenv.Postgres(t)))
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			a := c.do(http.MethodPost, "/v1/leases", map[string]string{"resource": fmt.Sprint("orders/", i), "ttl": "60s", "wait": "30s", "holder": "test"})
			if a.Status != http.StatusCreated {
				t.Errorf("%d: %v", a.Status, a.Body)
			}
		})
	}
	all.Wait()
}

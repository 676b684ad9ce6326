//go:build unix

package gateway_test

import (
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestABackendThatDiesGivesTheLeaseBack(t *testing.T) {
	t.Parallel()
	c, pg := leasingGateway(t, nil)
	pool := pg.Pool(t)
	for state, sql := range map[string]string{
		"idle": "SELECT 1", "in a transaction": "BEGIN; UPDATE orders SET status = 'half'", "in a failed one": "BEGIN; SELECT 1/0", "in COPY": "COPY orders FROM STDIN",
	} {
		conn, err := c.login(t.Context(), pg, "-c fence.lease=orders/1001;fresh;ttl=1m;wait=20s") // waits until the previous one has released it
		if err != nil {
			t.Fatalf("%s: %v", state, err)
		}
		frontend := conn.PgConn().Frontend()
		frontend.SendQuery(&pgproto3.Query{String: sql})
		if err := frontend.Flush(); err != nil {
			t.Fatal(err)
		}
		for answered := false; !answered; {
			switch m, err := frontend.Receive(); m.(type) {
			case *pgproto3.ReadyForQuery, *pgproto3.CopyInResponse:
				answered = true
			default:
				if err != nil {
					t.Fatalf("%s: %v", state, err)
				}
			}
		}
		if _, err := pool.Exec(t.Context(), "SELECT pg_terminate_backend($1)", conn.PgConn().PID()); err != nil {
			t.Fatal(err)
		}
	}
	c.acquire("orders/1001", "1m", "20s")
	testenv.Eventually(t, "no session is left", func() bool {
		a := c.do("GET", "/v1/sessions", nil)
		all, _ := a.Body["sessions"].([]any)
		return a.Status == http.StatusOK && len(all) == 0
	})
}

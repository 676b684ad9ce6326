//go:build unix

package pgwire_test

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/pgwire"
)

// refusal is the fence's answer to a stale writer.
var refusal = &pgproto3.ErrorResponse{
	Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "ZF001", Message: "stale fencing token 34",
	Detail: `{"resource": "orders/1001", "presented": "34", "recorded": "35", "relation": "public.orders", "operation": "UPDATE"}`,
}

func reports(into chan<- activity.Event) option {
	return func(c *pgwire.Config) { c.Tell = func(e activity.Event) { into <- e } }
}

// Each refusal is reported once, and nothing else, wherever the network splits PostgreSQL's messages.
func TestEachRefusalThatPassesIsToldOnce(t *testing.T) {
	t.Parallel()
	other := &pgproto3.ErrorResponse{Severity: "ERROR", Code: "23505", Message: "duplicate key: CZF001", Detail: "ZF001"}
	notice := &pgproto3.NoticeResponse{Severity: "LOG", Code: "ZF001", Message: "would refuse"}
	answer := encode(other, ready, notice, refusal, ready, &pgproto3.DataRow{Values: [][]byte{[]byte("\x00CZF001\x00")}}, refusal, ready)
	for cut := 1; cut < len(answer); cut += 37 {
		events := make(chan activity.Event, 10)
		r := start(t, "tcp", upstream(t, func(conn net.Conn) {
			readStartup(conn)
			_, _ = conn.Write(encode(authOK, ready))
			one := make([]byte, 1)
			for at := 0; at < len(answer); at += cut { // each part waits until the previous one has passed
				if _, err := io.ReadFull(conn, one); err != nil {
					return
				}
				_, _ = conn.Write(answer[at:min(at+cut, len(answer))])
			}
			_, _ = io.Copy(io.Discard, conn)
		}), "shop", reports(events))
		conn := r.dial()
		send(t, conn, startup)
		login := encode(authOK, ready)
		if _, err := io.ReadFull(conn, make([]byte, len(login))); err != nil {
			t.Fatal(err)
		}
		query, _ := (&pgproto3.Query{String: string(make([]byte, len(answer)))}).Encode(nil)
		for at, i := 0, 0; at < len(answer); at, i = at+cut, i+1 {
			if _, err := conn.Write(query[i : i+1]); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, min(cut, len(answer)-at))); err != nil {
				t.Fatal(err)
			}
		}
		if len(events) != 2 {
			t.Fatalf("in parts of %d: %d events, want 2", cut, len(events))
		}
		e := <-events
		if e.Surface != "pg" || e.Code != "ZF001" || e.Login != "ada" || e.Resource != "orders/1001" || e.Presented != 34 || e.Recorded != 35 ||
			e.Statement != "UPDATE" || e.Table != "public.orders" || e.Client != conn.LocalAddr().String() {
			t.Errorf("%+v", e)
		}
		_ = conn.Close()
		r.stop()
	}
}

// Messages other than refusals, including other errors, pass without an allocation.
func TestErrorsPassWithoutAllocation(t *testing.T) {
	// Not parallel: other tests' allocations would count.
	query, _ := (&pgproto3.Query{String: "SELECT 1"}).Encode(nil)
	answer := encode(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "23505", Message: "duplicate key", Detail: strings.Repeat("Key (id)=(1) already exists. ", 4)}, ready)
	r := start(t, "tcp", upstream(t, echoes(len(query), answer)), "shop", reports(nil))
	once := roundTrips(t, r.addr, query, len(answer))
	once()
	if got := testing.AllocsPerRun(200, once); got != 0 {
		t.Errorf("%v allocations for an error, want 0", got)
	}
}

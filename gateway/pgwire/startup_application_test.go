//go:build unix

package pgwire_test

import (
	"context"
	"io"
	"maps"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
)

func namesClients(c *pgwire.Config) { c.NamesClients = true }

// The application_name in pg_stat_activity contains the client's address, because PostgreSQL itself sees the gateway's.
func TestAnApplicationsNameHasItsClientsAddress(t *testing.T) {
	t.Parallel()
	w := setup(t, namesClients, behindProxy)
	const client = "192.0.2.7:12345"
	for name, c := range map[string]struct {
		params map[string]string
		want   string
	}{
		"none":          {nil, "@" + client},
		"its own":       {map[string]string{"application_name": "billing"}, "billing @" + client},
		"in options":    {map[string]string{"options": "-c application_name=billing"}, "billing @" + client},
		"both":          {map[string]string{"options": "-c application_name=a", "application_name": "b"}, "b @" + client},
		"in capitals":   {map[string]string{"Application_Name": "billing"}, "billing @" + client},
		"a long one":    {map[string]string{"application_name": strings.Repeat("n", 80)}, strings.Repeat("n", 63-len(client)-2) + " @" + client},
		"under a grant": {map[string]string{"options": "-c fence.resource=r -c fence.token=1.s", "application_name": "b"}, "b @" + client},
	} {
		cfg := w.config(w.pg.URL)
		delete(cfg.RuntimeParams, "application_name")
		maps.Copy(cfg.RuntimeParams, c.params)
		dial := cfg.DialFunc
		cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err == nil {
				_, err = io.WriteString(conn, proxyHeader(0x21, 0x11, "\xc0\x00\x02\x07\x7f\x00\x00\x01\x30\x39\x1b\x58"))
			}
			return conn, err
		}
		conn := w.connect(cfg)
		if got := conn.PgConn().ParameterStatus("application_name"); got != c.want {
			t.Errorf("%s: the client gets %q; want %q", name, got, c.want)
		}
		if _, err := conn.Exec(t.Context(), "RESET ALL; DISCARD ALL", pgx.QueryExecModeSimpleProtocol); err != nil && !strings.Contains(err.Error(), "DISCARD ALL") {
			t.Fatal(err)
		}
		var shown, seen string
		const ask = "SELECT current_setting('application_name'), application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()"
		if err := conn.QueryRow(t.Context(), ask).Scan(&shown, &seen); err != nil {
			t.Fatal(err)
		}
		if shown != c.want || seen != c.want {
			t.Errorf("%s: %q, in pg_stat_activity %q; want %q", name, shown, seen, c.want)
		}
	}
	for _, s := range w.srv.Sessions() {
		if strings.Contains(s.Application, client) {
			t.Errorf("the gateway's list says %q, beside the address", s.Application)
		}
	}
}

// An application_name that identifies a synchronous standby, or does not fit into the packet, stays unchanged.
func TestANameThatMattersOrDoesNotFitStaysAsItIs(t *testing.T) {
	t.Parallel()
	got := make(chan []byte, 1)
	r := start(t, "tcp", upstream(t, func(conn net.Conn) {
		got <- readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		_, _ = io.Copy(io.Discard, conn)
	}), "", namesClients)
	for name, params := range map[string]map[string]string{
		"physical replication": {"replication": "true", "application_name": "standby1"},
		"logical replication":  {"replication": "database", "application_name": "sub1"},
		"a full packet":        {"a.b": strings.Repeat("x", 9950)},
	} {
		params["user"], params["database"] = "ada", "shop"
		packet, err := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: params}).Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		conn := r.dial()
		if _, err := conn.Write(packet); err != nil {
			t.Fatal(err)
		}
		if b := <-got; string(b) != string(packet) {
			t.Errorf("%s: PostgreSQL got %d bytes, want the %d verbatim", name, len(b), len(packet))
		}
	}
}

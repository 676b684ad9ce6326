//go:build unix

package pgwire_test

import (
	"io"
	"log/slog"
	"net"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
)

// echoes answers each query of the given size, after login, with answer.
func echoes(query int, answer []byte) func(net.Conn) {
	return func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		b := make([]byte, query)
		for {
			if _, err := io.ReadFull(conn, b); err != nil {
				return
			}
			if _, err := conn.Write(answer); err != nil {
				return
			}
		}
	}
}

// roundTrips opens a session and returns a function that does one exchange through it without allocating.
func roundTrips(tb testing.TB, addr string, query []byte, answer int) func() {
	tb.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	send(tb, conn, startup)
	if _, err := io.ReadFull(conn, make([]byte, len(encode(authOK, ready)))); err != nil {
		tb.Fatal(err)
	}
	b := make([]byte, answer)
	return func() {
		if _, err := conn.Write(query); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.ReadFull(conn, b); err != nil {
			tb.Fatal(err)
		}
	}
}

// exchange returns a query and an answer of many messages: the rows fill more than one read, so that reads split
// headers.
func exchange() (query, answer []byte) {
	query, _ = (&pgproto3.Query{String: "SELECT 1"}).Encode(nil)
	row := &pgproto3.DataRow{Values: [][]byte{make([]byte, 97), nil, make([]byte, 13)}}
	for range 1000 {
		answer, _ = row.Encode(answer)
	}
	return query, append(answer, encode(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1000")}, ready)...)
}

func TestMessagesPassWithoutAllocation(t *testing.T) {
	// Not parallel: other tests' allocations would count.
	query, answer := exchange()
	r := start(t, "tcp", upstream(t, echoes(len(query), answer)), "shop", reports(nil))
	once := roundTrips(t, r.addr, query, len(answer))
	once()
	const messages = 1003
	// AllocsPerRun sees every goroutine: the client's, both of the relay's, and the upstream's.
	if got := testing.AllocsPerRun(200, once); got != 0 {
		t.Errorf("%v allocations for an exchange of %d messages, want 0", got, messages)
	}
}

func BenchmarkExchange(b *testing.B) {
	query, answer := exchange()
	small := encode(ready)
	for name, answer := range map[string][]byte{"one-message": small, "1000-rows": answer} {
		b.Run(name+"/direct", func(b *testing.B) {
			bench(b, roundTrips(b, upstream(b, echoes(len(query), answer)), query, len(answer)), len(answer))
		})
		b.Run(name+"/relayed", func(b *testing.B) {
			srv, err := pgwire.New(pgwire.Config{Addr: upstream(b, echoes(len(query), answer)), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
			if err != nil {
				b.Fatal(err)
			}
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = srv.Serve(b.Context(), ln)
			}()
			b.Cleanup(func() { <-done })
			bench(b, roundTrips(b, ln.Addr().String(), query, len(answer)), len(answer))
		})
	}
}

func bench(b *testing.B, once func(), bytes int) {
	b.ReportAllocs()
	b.SetBytes(int64(bytes))
	for b.Loop() {
		once()
	}
}

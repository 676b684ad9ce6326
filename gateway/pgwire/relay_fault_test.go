//go:build unix

package pgwire_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/internal/testenv"
)

// openCopy opens a session that is in the middle of COPY FROM STDIN.
func openCopy(t *testing.T, r *relay) (net.Conn, *pgproto3.Frontend) {
	t.Helper()
	conn := r.dial()
	send(t, conn, startup, &pgproto3.Query{String: "COPY t FROM STDIN"})
	frontend := pgproto3.NewFrontend(conn, conn)
	for {
		m, err := frontend.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := m.(*pgproto3.CopyInResponse); ok {
			return conn, frontend
		}
	}
}

// acceptsCopy plays PostgreSQL up to the COPY data, and passes the connection to data.
func acceptsCopy(data func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready, &pgproto3.CopyInResponse{}))
		data(conn)
	}
}

func TestClientThatVanishesInCopyTakesItsUpstreamAlong(t *testing.T) {
	t.Parallel()
	for name, vanish := range map[string]func(net.Conn){
		"by a reset": func(conn net.Conn) {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		},
		"by its end": func(conn net.Conn) { _ = conn.Close() },
	} {
		got := make(chan int64, 1)
		r := start(t, "tcp", upstream(t, acceptsCopy(func(conn net.Conn) {
			n, _ := io.Copy(io.Discard, conn) // returns only when the relay closes the connection
			got <- n
		})), "shop")
		conn, _ := openCopy(t, r)
		row, _ := (&pgproto3.CopyData{Data: make([]byte, 1000)}).Encode(nil)
		if _, err := conn.Write(row[:500]); err != nil { // in the middle of a message
			t.Fatal(err)
		}
		vanish(conn)
		select {
		case <-got:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: PostgreSQL still waits for the rest of the COPY", name)
		}
		testenv.Eventually(t, "the session is over", func() bool { return r.srv.Stats().Active == 0 })
	}
}

func TestUpstreamThatDiesInCopyIsToldToTheClient(t *testing.T) {
	t.Parallel()
	r := start(t, "tcp", upstream(t, acceptsCopy(func(conn net.Conn) {
		_, _ = io.ReadFull(conn, make([]byte, 100)) // part of the query, which it has not read, and of the data
		_ = conn.(*net.TCPConn).SetLinger(0)
	})), "shop")
	conn, frontend := openCopy(t, r)
	row, _ := (&pgproto3.CopyData{Data: make([]byte, 1000)}).Encode(nil)
	_, _ = conn.Write(row)
	for {
		m, err := frontend.Receive()
		if err != nil {
			t.Fatalf("%v; want an error of the relay's", err)
		}
		if e, ok := m.(*pgproto3.ErrorResponse); ok {
			if e.Code != "08006" {
				t.Errorf("%s %s", e.Code, e.Message)
			}
			break
		}
	}
	testenv.Eventually(t, "the session is over", func() bool { return r.srv.Stats().Active == 0 })
}

func TestClientThatDoesNotReadHoldsBackPostgreSQL(t *testing.T) {
	t.Parallel()
	const much = 256 << 20
	sent := make(chan int, 1)
	r := start(t, "tcp", upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		row := encode(&pgproto3.DataRow{Values: [][]byte{make([]byte, 1<<20)}})
		total := 0
		for total < much {
			_ = conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond)) // per write: slow progress is allowed
			n, err := conn.Write(row)
			total += n
			if err != nil {
				break
			}
		}
		sent <- total
	}), "shop")
	conn := r.dial()
	send(t, conn, startup)
	if total := <-sent; total >= much/2 {
		t.Errorf("PostgreSQL could send %d MiB to a client that reads nothing: somebody buffers them", total>>20)
	}
}

// FuzzSession plays a client and a server that send arbitrary bytes: the relay must end, and so must every goroutine
// that it started (goleak).
func FuzzSession(f *testing.F) {
	good, _ := startup.Encode(nil)
	query, _ := (&pgproto3.Query{String: "SELECT 1"}).Encode(nil)
	welcome := encode(authOK, ready)
	f.Add(append(good, query...), append(welcome, encode(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")}, ready)...))
	f.Add(good[:7], welcome)
	f.Add(append(good, 'Q', 0, 0, 0, 1), append(welcome, 'D', 0xff, 0xff, 0xff, 0xff))
	f.Add(append(good, 'd', 0, 0, 0, 9, 'x'), append(welcome, encode(&pgproto3.CopyInResponse{})...))
	f.Add([]byte("\x16\x03\x01\x02\x00\x01"), []byte{})
	f.Fuzz(func(t *testing.T, client, server []byte) {
		r := start(t, "tcp", upstream(t, func(conn net.Conn) {
			readStartup(conn)
			_, _ = conn.Write(server)
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
		}), "shop")
		conn := r.dial()
		_, _ = conn.Write(client)
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
		r.stop()
		if n := r.srv.Stats().Active; n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

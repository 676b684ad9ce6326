//go:build unix

package pgwire_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
)

// withheld is a session in which PostgreSQL withholds answers.
type withheld struct {
	first  []pgproto3.FrontendMessage
	early  []pgproto3.BackendMessage // sent before the stop
	second []pgproto3.FrontendMessage
	late   []pgproto3.BackendMessage // must still reach the client
}

// serve plays PostgreSQL. It sends the late answers once release is closed.
func (c withheld) serve(conn net.Conn, received chan<- []byte, release <-chan struct{}) {
	readStartup(conn)
	_, _ = conn.Write(encode(authOK, ready))
	b := make([]byte, 1000)
	n, _ := io.ReadFull(conn, b[:size(c.first...)]) // it may come in pieces
	received <- b[:n]
	_, _ = conn.Write(encode(c.early...))
	if len(c.second) > 0 {
		n, _ = io.ReadFull(conn, b[:size(c.second...)])
		received <- b[:n]
	}
	<-release
	_, _ = conn.Write(encode(c.late...))
	rest, _ := io.ReadAll(conn)
	received <- rest
}

func nextMessage(t *testing.T, frontend *pgproto3.Frontend, what string) pgproto3.BackendMessage {
	t.Helper()
	m, err := frontend.Receive()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return m
}

// TestStopWaitsForEverythingThatWasSent withholds answers and checks that a stop does not end the session while one is
// due.
func TestStopWaitsForEverythingThatWasSent(t *testing.T) {
	t.Parallel()
	query, sync, copyDone := &pgproto3.Query{String: "x"}, &pgproto3.Sync{}, &pgproto3.CopyDone{}
	copyIn := &pgproto3.CopyInResponse{}
	for name, c := range map[string]withheld{
		"one query":              {first: []pgproto3.FrontendMessage{query}, late: []pgproto3.BackendMessage{ready}},
		"two queries in a row":   {first: []pgproto3.FrontendMessage{query, query}, early: []pgproto3.BackendMessage{ready}, late: []pgproto3.BackendMessage{ready}},
		"messages without Sync":  {first: []pgproto3.FrontendMessage{&pgproto3.Parse{Query: "x"}, &pgproto3.Flush{}}, second: []pgproto3.FrontendMessage{sync}, late: []pgproto3.BackendMessage{ready}},
		"COPY, extended":         {first: []pgproto3.FrontendMessage{sync}, early: []pgproto3.BackendMessage{copyIn}, second: []pgproto3.FrontendMessage{copyDone, sync}, late: []pgproto3.BackendMessage{ready}},
		"COPY, simple":           {first: []pgproto3.FrontendMessage{query}, early: []pgproto3.BackendMessage{copyIn}, second: []pgproto3.FrontendMessage{copyDone}, late: []pgproto3.BackendMessage{ready}},
		"a transaction, to end":  {first: []pgproto3.FrontendMessage{query}, early: []pgproto3.BackendMessage{&pgproto3.ReadyForQuery{TxStatus: 'T'}}, second: []pgproto3.FrontendMessage{query}, late: []pgproto3.BackendMessage{ready}},
		"a failed transaction":   {first: []pgproto3.FrontendMessage{query}, early: []pgproto3.BackendMessage{&pgproto3.ReadyForQuery{TxStatus: 'E'}}, second: []pgproto3.FrontendMessage{query}, late: []pgproto3.BackendMessage{ready}},
		"with a notice before I": {first: []pgproto3.FrontendMessage{query}, late: []pgproto3.BackendMessage{&pgproto3.NoticeResponse{Message: "x"}, ready}},
	} {
		release := make(chan struct{})
		received := make(chan []byte, 10)
		r := start(t, "tcp", upstream(t, func(conn net.Conn) {
			c.serve(conn, received, release)
		}), "shop", func(c *pgwire.Config) { c.DrainTimeout = 20 * time.Second })
		conn := r.dial()
		frontend := pgproto3.NewFrontend(conn, conn)
		send(t, conn, startup)
		nextMessage(t, frontend, name+": login")
		nextMessage(t, frontend, name+": login")
		send(t, conn, c.first...)
		<-received
		for range c.early {
			nextMessage(t, frontend, name+": early")
		}
		stopped := make(chan struct{})
		go func() {
			r.stop()
			close(stopped)
		}()
		refusing(t, r)
		if len(c.second) > 0 {
			send(t, conn, c.second...)
			<-received
		}
		close(release)
		for range c.late {
			if e, is := nextMessage(t, frontend, name+": late").(*pgproto3.ErrorResponse); is {
				t.Fatalf("%s: %s came before the answer", name, e.Code)
			}
		}
		if e, is := nextMessage(t, frontend, name+": the end").(*pgproto3.ErrorResponse); !is || e.Code != "57P01" {
			t.Errorf("%s: no 57P01", name)
		}
		<-stopped
		want := "X\x00\x00\x00\x04"
		if name == "COPY, extended" { // an answer may be due: the session is halted
			want = ""
		}
		if rest := <-received; string(rest) != want {
			t.Errorf("%s: PostgreSQL got %q at the end, want %q", name, rest, want)
		}
	}
}

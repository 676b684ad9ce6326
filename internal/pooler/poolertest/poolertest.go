// Package poolertest has a pooler for tests, which needs no program.
package poolertest

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// InTransactionMode starts a pooler in front of a server, with this number of sessions, and returns its address. It
// lends a client one of them for one transaction, like PgBouncer in transaction mode. It expects queries as pgx sends
// them: a batch up to Sync, or one simple query.
func InTransactionMode(t testing.TB, url string, size int) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	servers := make(chan *pgproto3.Frontend, size)
	for range size {
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := conn.PgConn().Hijack()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = raw.Conn.Close() })
		servers <- raw.Frontend
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = client.Close() }()
				lend(client, servers)
			}()
		}
	}()
	return fmt.Sprintf("postgres://pooled@%s/%s?sslmode=disable", ln.Addr(), config.Database)
}

// known are the startup parameters that PgBouncer accepts.
var known = []string{"user", "database", "application_name", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings"}

// lend serves one client.
func lend(client net.Conn, servers chan *pgproto3.Frontend) {
	back := pgproto3.NewBackend(client, client)
	startup, err := back.ReceiveStartupMessage()
	if err != nil {
		return
	}
	if m, ok := startup.(*pgproto3.StartupMessage); ok {
		for name := range m.Parameters {
			if !slices.Contains(known, name) {
				back.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
				_ = back.Flush()
				return
			}
		}
	}
	back.Send(&pgproto3.AuthenticationOk{})
	back.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	back.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	back.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	back.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	var server *pgproto3.Frontend
	defer func() {
		if server != nil {
			servers <- server
		}
	}()
	for back.Flush() == nil {
		first, err := back.Receive()
		if err != nil {
			return
		}
		if server == nil {
			server = <-servers
		}
		if !ask(back, server, first) {
			return
		}
		idle, ok := answer(back, server)
		if !ok {
			return
		}
		if idle {
			servers <- server
			server = nil
		}
	}
}

// ask passes on messages until the client waits for an answer. ok is false if it has left.
func ask(back *pgproto3.Backend, server *pgproto3.Frontend, msg pgproto3.FrontendMessage) (ok bool) {
	for err := error(nil); err == nil; msg, err = back.Receive() {
		if _, leaves := msg.(*pgproto3.Terminate); leaves {
			return false
		}
		server.Send(msg)
		switch msg.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
			return server.Flush() == nil
		}
	}
	return false
}

// answer passes on the answer, up to the server's readiness. idle: its transaction is over.
func answer(back *pgproto3.Backend, server *pgproto3.Frontend) (idle, ok bool) {
	for {
		msg, err := server.Receive()
		if err != nil {
			return false, false
		}
		back.Send(msg)
		if ready, is := msg.(*pgproto3.ReadyForQuery); is {
			return ready.TxStatus == 'I', true
		}
	}
}

// Package poolertest has a pooler for tests, which needs no program.
package poolertest

import (
	"fmt"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// InTransactionMode starts a pooler in front of a server, with this number of sessions, and returns its address. It
// lends a client one of them for one transaction, like PgBouncer in transaction mode. It expects queries as pgx sends them: a batch up to Sync, or one simple query.
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

func lend(client net.Conn, servers chan *pgproto3.Frontend) {
	back := pgproto3.NewBackend(client, client)
	if _, err := back.ReceiveStartupMessage(); err != nil {
		return
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
		asked := false
		for !asked {
			msg, err := back.Receive()
			if err != nil {
				return
			}
			if server == nil {
				server = <-servers
			}
			switch msg.(type) {
			case *pgproto3.Terminate:
				return
			case *pgproto3.Query, *pgproto3.Sync:
				asked = true
			}
			server.Send(msg)
		}
		if server.Flush() != nil {
			return
		}
		for done := false; !done; {
			msg, err := server.Receive()
			if err != nil {
				return
			}
			back.Send(msg)
			if ready, ok := msg.(*pgproto3.ReadyForQuery); ok {
				done = true
				if ready.TxStatus == 'I' {
					servers <- server
					server = nil
				}
			}
		}
	}
}

package client

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// endedAfter is a PostgreSQL that answers one query with a value, and ends the session right after the answer.
func endedAfter(conn net.Conn, value string) error {
	defer func() { _ = conn.Close() }()
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return err
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := b.Flush(); err != nil {
		return err
	}
	if _, err := b.Receive(); err != nil {
		return err
	}
	b.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("value"), DataTypeOID: 25, DataTypeSize: -1, TypeModifier: -1}}})
	b.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(value)}})
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "ZF001", Message: `stale fencing token 34 for "r"`, Detail: "{}", Hint: "A newer holder has taken over."})
	if err := b.Flush(); err != nil {
		return err
	}
	_, err := b.Receive() // until psql disconnects
	return err
}

func TestAReadWhoseSessionEndsRightBehindTheAnswerSawItsValue(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("psql")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			err = endedAfter(conn, "c2.2-7")
		}
		served <- err
	}()
	host, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p, err := startProgram("sh", []string{"-c", command}, append(os.Environ(), "FENCE_TOKEN=34.seal", "ROBUST_PSQL="+path, "ROBUST_HOST="+host,
		"ROBUST_PORT="+port, "PGUSER=u", "PGDATABASE=d", "PGSSLMODE=disable", "PGGSSENCMODE=disable", "PGOPTIONS="))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = p.kill(); _ = ln.Close(); <-served }()
	if _, err := p.line(bounded(t)); err != nil { // the token
		t.Fatal(err)
	}
	saw, wrong, err := (&psql{program: p}).read(bounded(t), rowKind+"r")
	if errors.Is(err, errEnded) {
		t.Fatal("psql took the end of its session for the end of the query")
	}
	if saw != "c2.2-7" || wrong != "" || err != nil {
		t.Errorf("saw %q, wrong %q, %v; want c2.2-7", saw, wrong, err)
	}
}

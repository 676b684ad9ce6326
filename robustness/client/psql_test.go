package client

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/robustness/history"
)

// rolledBack fails a pause of psql before COMMIT, which PostgreSQL then answers with ROLLBACK, without an error.
func rolledBack(t *testing.T, w *world) {
	for _, name := range []string{"run-psql", "run-several"} {
		l := w.worker(t, name, 1).takes(t, w)
		pauses := 0
		outcome, err := l.writes(bounded(t), "aborted", nil, func(ctx context.Context) {
			if pauses++; pauses == 3 {
				_ = l.access.(*psql).exec(ctx, "", "SELECT 1/0")
			}
		})
		if pauses != 3 || outcome != history.Failed {
			t.Errorf("%s: paused %d times: %s: %v", name, pauses, outcome, err)
		}
		w.agrees(t, l, "aborted", outcome)
	}
}

// psql prints the end of a session that arrives right behind an answer before the answer's rows.
func TestAReadWhoseSessionEndsRightBehindTheAnswerSawItsValue(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("psql")
	must(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- answersAndEnds(ln, "c2.2-7") }()
	host, port, err := net.SplitHostPort(ln.Addr().String())
	must(t, err)
	p, err := startProgram("sh", []string{"-c", command}, append(os.Environ(), "FENCE_RESOURCE=r", "FENCE_TOKEN=34.seal", "FENCE_GRANTS=",
		"ROBUST_PSQL="+path, "ROBUST_HOST="+host, "ROBUST_PORT="+port, "PGUSER=u", "PGDATABASE=d", "PGSSLMODE=disable", "PGGSSENCMODE=disable", "PGOPTIONS="))
	must(t, err)
	t.Cleanup(func() { p.kill(); _ = ln.Close(); must(t, <-served) })
	_, err = p.line(bounded(t)) // the grants
	must(t, err)
	if saw, wrong, err := (&psql{program: p}).read(bounded(t), rowKind+"r"); saw != "c2.2-7" || wrong != "" || err != nil {
		t.Errorf("saw %q, wrong %q, %v; want c2.2-7", saw, wrong, err)
	}
}

// answersAndEnds is a PostgreSQL that answers one query with a value, and ends the session right behind the answer.
func answersAndEnds(ln net.Listener, value string) error {
	conn, err := ln.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
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
	b.Send(&pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "ZF001", Message: "stale fencing token 34", Detail: "{}", Hint: "A newer holder has taken over.",
	})
	if err := b.Flush(); err != nil {
		return err
	}
	_, _ = b.Receive() // until psql disconnects
	return nil
}

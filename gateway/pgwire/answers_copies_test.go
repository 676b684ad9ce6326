//go:build unix

package pgwire_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

// idle waits until a client's session is listed as idle.
func idle(t *testing.T, r *relay, client string) {
	t.Helper()
	testenv.Eventually(t, "the session is idle", func() bool {
		return slices.ContainsFunc(r.srv.Sessions(), func(s pgwire.Session) bool { return s.Client == client && s.State == "idle" })
	})
}

// waits is the type of a message to wait for.
type waits rune

const began, failed, answered = waits('G'), waits('E'), waits('Z')

func (w waits) receive(t *testing.T, front *pgproto3.Frontend) {
	t.Helper()
	for {
		m, err := front.Receive()
		if err != nil {
			t.Fatalf("waiting for %c: %v", w, err)
		}
		var got waits
		switch m.(type) {
		case *pgproto3.CopyInResponse:
			got = began
		case *pgproto3.ErrorResponse:
			got = failed
		case *pgproto3.ReadyForQuery:
			got = answered
		}
		if got == w {
			return
		}
		if got == answered {
			t.Fatalf("ReadyForQuery instead of %c", w)
		}
	}
}

// PostgreSQL answers COPY as the relay's counting assumes.
func TestPostgreSQLAnswersCopiesAsTheyAreCounted(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.shop() // notes is unguarded; orders needs a grant
	begins := func(table string) []pgproto3.FrontendMessage {
		return says{&pgproto3.Parse{Query: "COPY " + table + " FROM STDIN"}, &pgproto3.Bind{}, &pgproto3.Execute{}}
	}
	copies, sync, flush := begins("notes"), &pgproto3.Sync{}, &pgproto3.Flush{}
	row, bad, done := &pgproto3.CopyData{Data: []byte("1\n")}, &pgproto3.CopyData{Data: []byte("x\n")}, &pgproto3.CopyDone{}
	one, two := &pgproto3.Query{String: "COPY notes FROM STDIN"}, &pgproto3.Query{String: "COPY notes FROM STDIN; COPY notes FROM STDIN"}
	for name, steps := range map[string][]any{
		"by Execute":              {says(copies), says{sync}, began, says{row, done, sync}, answered},
		"with Flush":              {says(copies), says{flush}, began, says{row, done, sync}, answered},
		"bad data, then Sync":     {says(copies), says{sync}, began, says{bad}, failed, says{sync}, answered},
		"bad data, then the rest": {says(copies), says{sync}, began, says{bad}, failed, says{row, done, sync}, answered},
		"bad data, all at once":   {says(copies), says{sync}, began, says{bad, row, done, sync}, failed, answered},
		"data sent ahead":         {says(append(copies, sync, row, done, sync)), began, answered},
		"data sent on":            {says(append(copies, sync)), says{row, done, sync}, began, answered},
		"two of them at once":     {slices.Concat(copies, says{sync, row, done, sync}, copies, says{sync, row, done, sync}), began, answered, began, answered},
		"an error skips a Query":  {says{&pgproto3.Parse{Query: "nonsense"}, one, sync}, failed, answered},
		"no such table":           {says(append(begins("nowhere"), sync, row, done, sync)), failed, answered, answered},
		"refused by the fence":    {says(append(begins("orders"), sync)), began, failed, answered, says{row, done, sync}, answered},
		"by Query":                {says{one}, began, says{row, done}, answered},
		"a Query behind":          {says{one}, began, says{row, done, &pgproto3.Query{String: "SELECT"}}, answered, answered},
		"a Sync behind":           {says{one}, began, says{row, done, sync}, answered, answered},
		"two in a Query":          {says{two}, began, says{row, done}, began, says{row, done}, answered},
		"bad data in a Query":     {says{one}, began, says{bad}, failed, answered, says{row, row, done}},
		"a Query ahead of it all": {says{one, row, done}, began, answered},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := w.connect(w.config(w.pg.WriterURL))
			front, address := conn.PgConn().Frontend(), conn.PgConn().Conn().LocalAddr().String()
			_ = conn.PgConn().Conn().SetDeadline(time.Now().Add(30 * time.Second))
			for _, step := range append(steps, says{&pgproto3.Query{String: "SELECT"}}, answered) {
				switch step := step.(type) {
				case says:
					for _, m := range step {
						front.Send(m)
					}
					if err := front.Flush(); err != nil {
						t.Fatal(err)
					}
				case waits:
					step.receive(t, front)
				}
			}
			idle(t, w.relay, address)
		})
	}
}

// After a COPY the count of answers is a guess, and the session may count as idle while a statement that was sent ahead
// runs.
func TestAStatementSentAheadOfACopyIsStoppedWithItsSession(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.shop()
	pool := w.pg.Pool(t)
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_xact_lock(7)"); err != nil {
		t.Fatal(err)
	}
	const waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
	waits := func() (waits bool) {
		if err := pool.QueryRow(t.Context(), waiting).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	}
	conn := w.connect(w.config(w.pg.WriterURL)).PgConn()
	_ = conn.Conn().SetDeadline(time.Now().Add(30 * time.Second))
	send(t, conn.Conn(), &pgproto3.Parse{Query: "COPY notes FROM STDIN"}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{},
		&pgproto3.CopyData{Data: []byte("1\n")}, &pgproto3.CopyDone{}, &pgproto3.Sync{},
		&pgproto3.Query{String: "INSERT INTO notes SELECT 2 FROM pg_advisory_xact_lock(7)"})
	for {
		if m, err := conn.Frontend().Receive(); err != nil {
			t.Fatal(err)
		} else if _, ok := m.(*pgproto3.ReadyForQuery); ok {
			break
		}
	}
	testenv.Eventually(t, "the statement runs", waits)
	idle(t, w.relay, conn.Conn().LocalAddr().String())
	if all := w.srv.Sessions(); len(all) != 1 || !w.srv.End(all[0].ID) {
		t.Fatalf("sessions: %+v", all)
	}
	if code, text := finalError(t, conn.Conn()); code != "57P01" {
		t.Errorf("%s %s", code, text)
	}
	if waits() {
		t.Error("the client knows of the end, but its statement still runs")
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

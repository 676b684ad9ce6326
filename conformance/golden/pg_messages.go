package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// playMessages sends every kind of message.
func playMessages(ctx context.Context, w *world, b *book) error {
	t := &pgTalk{ctx: ctx, w: w, b: b}
	if err := w.guarded(ctx, "pg_messages", "pg-messages/"); err != nil {
		return err
	}
	l, err := w.acquire(ctx, "pg-messages/1")
	if err != nil {
		return err
	}
	b.part("simple")
	s := t.open("user", "app_trust", "options", grantOf("pg-messages/1", l.Grant))
	for _, sql := range []string{"", "SELECT 1, NULL, 'x'", "SELECT 1; SELECT 2; SELECT 1/0; SELECT 3", "BEGIN; INSERT INTO pg_messages VALUES (1, 'a')", "SELECT nonsense", "SELECT 1", "ROLLBACK", "LISTEN golden", "NOTIFY golden, 'x'", "DO $$ BEGIN RAISE NOTICE 'hello'; END $$"} {
		s.query(sql)
	}
	b.part("extended")
	s.send(&pgproto3.Parse{Name: "a", Query: "INSERT INTO pg_messages VALUES ($1, $2) RETURNING id"}, &pgproto3.Describe{ObjectType: 'S', Name: "a"},
		&pgproto3.Bind{PreparedStatement: "a", Parameters: [][]byte{[]byte("2"), []byte("b")}}, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{}, &pgproto3.Sync{})
	s.ready()
	s.send(&pgproto3.Bind{PreparedStatement: "a", Parameters: [][]byte{[]byte("2"), []byte("b")}}, &pgproto3.Execute{}, &pgproto3.Bind{PreparedStatement: "a", Parameters: [][]byte{[]byte("3"), nil}}, &pgproto3.Execute{}, &pgproto3.Sync{})
	s.ready()
	s.send(&pgproto3.Bind{PreparedStatement: "nothing"}, &pgproto3.Flush{}, &pgproto3.Sync{})
	s.ready()
	s.send(&pgproto3.Close{ObjectType: 'S', Name: "a"}, &pgproto3.Sync{})
	s.ready()
	b.part("COPY")
	s.query("COPY pg_messages FROM STDIN")
	s.send(&pgproto3.CopyData{Data: []byte("10\tten\n")}, &pgproto3.CopyDone{})
	s.ready()
	s.query("COPY pg_messages FROM STDIN")
	s.send(&pgproto3.CopyFail{Message: "golden"})
	s.ready()
	s.query("COPY (SELECT * FROM pg_messages ORDER BY id) TO STDOUT")
	b.part("a function call")
	s.send(&pgproto3.FunctionCall{Function: 1598, ResultFormatCode: 0})
	s.ready()
	b.part("cancelling")
	canceller(s)
	s.close()
	b.part("what no message is")
	s = t.open("user", "app_trust")
	if _, err := s.conn.Write([]byte("!\x00\x00\x00\x04")); err != nil {
		return err
	}
	s.untilOver()
	s.close()
	s = t.open("user", "app_trust")
	if _, err := s.conn.Write([]byte("Q\x00\x00\x00\x01")); err != nil {
		return err
	}
	s.untilOver()
	s.close()
	return t.err
}

// canceller runs a statement and cancels it after PostgreSQL has started it.
func canceller(s *session) {
	if s.over || s.key == nil {
		return
	}
	t := s.t
	t.b.linef("> Query, cancelled")
	s.front.Send(&pgproto3.Query{String: "SELECT pg_sleep(60) /* golden */"})
	s.flush()
	var busy bool
	for !busy && t.err == nil {
		t.err = t.w.admin.QueryRow(t.ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active' AND wait_event = 'PgSleep')").Scan(&busy)
	}
	request := binary.BigEndian.AppendUint32(nil, uint32(12+len(s.key.SecretKey)))
	request = binary.BigEndian.AppendUint32(request, 80877102)
	request = binary.BigEndian.AppendUint32(request, s.key.ProcessID)
	t.packet("CancelRequest", append(request, s.key.SecretKey...), 0)
	s.ready()
	s.query("SELECT 1")
}

// playEnds ends sessions from outside.
func playEnds(ctx context.Context, w *world, b *book) error {
	t := &pgTalk{ctx: ctx, w: w, b: b}
	if err := w.guarded(ctx, "pg_ends", "pg-ends/"); err != nil {
		return err
	}
	b.part("a newer grant is armed: idle, in a transaction")
	for _, how := range []string{"idle", "transaction"} {
		l, err := w.acquire(ctx, "pg-ends/"+how)
		if err != nil {
			return err
		}
		s := t.open("user", "app_trust", "options", grantOf(l.Resource, l.Grant))
		if how != "idle" {
			s.query("BEGIN")
			s.query("SELECT count(*) FROM pg_ends") // no check passed, so the gateway ends it, and not arming
		}
		if err := w.ask(ctx, "POST", "/v1/resources/pg-ends%2F"+how+"/revoke", `{"holder":"ops: golden"}`, nil); err != nil {
			return err
		}
		s.untilOver()
		s.close()
	}
	b.part("ended by an operator")
	api := &apiTalk{ctx: ctx, w: w, b: b}
	s := t.open("user", "app_trust", "application_name", "to be ended")
	id, err := w.sessionID(ctx, "app_trust")
	if err != nil {
		return err
	}
	api.do("GET", "/v1/sessions", "")
	api.do("POST", "/v1/sessions/"+id+"/end", `{"by":"ops: golden"}`)
	s.untilOver()
	s.close()
	api.do("POST", "/v1/sessions/"+id+"/end", `{"by":"ops: golden"}`)
	b.part("more sessions than one role may have")
	var many []*session
	for range sessionsOfUser + 1 {
		many = append(many, t.open("user", "few_trust"))
	}
	for _, s := range many {
		s.close()
	}
	b.part("ended by PostgreSQL")
	s = t.open("user", "app_trust")
	s.query("SELECT pg_terminate_backend(pg_backend_pid())")
	s.close()
	if api.err != nil {
		return api.err
	}
	return t.err
}

// sessionID waits until the user has a single session, and returns its id.
func (w *world) sessionID(ctx context.Context, user string) (string, error) {
	for {
		var list struct {
			Sessions []struct{ ID, User string }
		}
		r, err := w.call(ctx, "GET", "/v1/sessions", "", nil)
		if err != nil {
			return "", err
		}
		if err := json.Unmarshal([]byte(r.body), &list); err != nil {
			return "", err
		}
		if len(list.Sessions) == 1 && list.Sessions[0].User == user {
			return list.Sessions[0].ID, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w: %s", ctx.Err(), r.body)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

//go:build unix

package pgwire_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

// dialog is a session whose client and PostgreSQL are both played by the test.
type dialog struct {
	*relay
	t              *testing.T
	client, server net.Conn
	front          *pgproto3.Frontend
	got            int64 // bytes that the client has received since the session opened
}

func newDialog(t *testing.T, opts ...option) *dialog {
	t.Helper()
	opened, over := make(chan net.Conn), make(chan struct{})
	r := start(t, "tcp", upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		opened <- conn
		<-over
	}), "shop", opts...)
	t.Cleanup(func() { close(over) })
	d := &dialog{relay: r, t: t, client: r.dial()}
	send(t, d.client, startup)
	d.front = pgproto3.NewFrontend(d.client, d.client)
	d.receive(authOK, ready)
	d.server = <-opened
	_ = d.server.SetDeadline(time.Now().Add(30 * time.Second))
	d.got = int64(len(encode(ready)))
	return d
}

func (d *dialog) receive(messages ...pgproto3.BackendMessage) {
	d.t.Helper()
	for range messages {
		if _, err := d.front.Receive(); err != nil {
			d.t.Fatal(err)
		}
	}
}

// says sends these messages from the client, in one write, and lets PostgreSQL read them.
func (d *dialog) says(messages ...pgproto3.FrontendMessage) {
	d.t.Helper()
	send(d.t, d.client, messages...)
	if _, err := io.ReadFull(d.server, make([]byte, size(messages...))); err != nil {
		d.t.Fatal(err)
	}
}

// answers sends these messages from PostgreSQL, in one write, and lets the client read them.
func (d *dialog) answers(messages ...pgproto3.BackendMessage) {
	d.t.Helper()
	b := encode(messages...)
	if _, err := d.server.Write(b); err != nil {
		d.t.Fatal(err)
	}
	d.receive(messages...)
	d.got += int64(len(b))
}

// state returns the session's listed state once everything that passed is noted.
func (d *dialog) state() (state string) {
	d.t.Helper()
	testenv.Eventually(d.t, "what the client has got is noted", func() bool {
		all := d.srv.Sessions()
		if len(all) != 1 {
			d.t.Fatalf("sessions: %+v", all)
		}
		state = all[0].State
		return all[0].ToClient == d.got
	})
	return state
}

type (
	says    []pgproto3.FrontendMessage
	answers []pgproto3.BackendMessage
)

// plays goes through the steps: messages of each side, and the state in which the session is then listed.
func (d *dialog) plays(steps []any) {
	d.t.Helper()
	for i, step := range steps {
		switch step := step.(type) {
		case says:
			d.says(step...)
		case answers:
			d.answers(step...)
		case string:
			if got := d.state(); got != step {
				d.t.Fatalf("step %d: the session is %s, want %s", i, got, step)
			}
		}
	}
}

// Stops, idle timeouts and the hint of a FATAL depend on whether an answer is due.
func TestASessionIsIdleExactlyWhereNoAnswerIsDue(t *testing.T) {
	t.Parallel()
	var (
		query, sync, flush = &pgproto3.Query{String: "x"}, &pgproto3.Sync{}, &pgproto3.Flush{}
		parse, execute     = &pgproto3.Parse{Query: "x"}, &pgproto3.Execute{}
		failed             = &pgproto3.ErrorResponse{Severity: "ERROR", Code: "22P02"}
		complete           = &pgproto3.CommandComplete{CommandTag: []byte("COPY 1")}
	)
	for name, steps := range map[string][]any{
		"a statement without a Sync, sent before an earlier answer": {says{sync, parse, execute, flush}, answers{ready}, "active", says{sync}, answers{complete, ready}, "idle"},
		"two statements at once":                                    {says{query, query}, answers{complete, ready}, "active", answers{complete, ready}, "idle"},
		"a Query is skipped behind an error":                        {says{parse, query, sync}, answers{failed, ready}, "idle", says{query, query}, answers{complete, ready}, "active", answers{ready}, "idle"},
		"an error skips to the Sync":                                {says{parse, execute, parse, execute, sync}, answers{failed, ready}, "idle"},
		"a statement behind one that failed":                        {says{parse, execute, sync, parse, execute, sync}, answers{failed, ready}, "active", answers{complete, ready}, "idle"},
		"and it is a Query":                                         {says{parse, execute, sync, query}, answers{failed, ready}, "active", answers{complete, ready}, "idle"},
		"a function call":                                           {says{&pgproto3.FunctionCall{}}, "active", answers{ready}, "idle"},
		"Flush alone":                                               {says{flush}, "idle"},
		"a notice while it is idle":                                 {says{query}, answers{ready, &pgproto3.NoticeResponse{}}, "idle", answers{&pgproto3.NotificationResponse{}}, "idle"},
		"a statement whose answer ends in a notice":                 {says{query}, answers{complete, ready}, says{parse}, answers{&pgproto3.NoticeResponse{}}, "active"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newDialog(t).plays(steps)
		})
	}
}

func TestASessionThatCopiesIsIdleExactlyWhereNoAnswerIsDue(t *testing.T) {
	t.Parallel()
	var (
		query, sync, flush = &pgproto3.Query{String: "x"}, &pgproto3.Sync{}, &pgproto3.Flush{}
		parse, execute     = &pgproto3.Parse{Query: "x"}, &pgproto3.Execute{}
		data, done, fail   = &pgproto3.CopyData{Data: []byte("1\n")}, &pgproto3.CopyDone{}, &pgproto3.CopyFail{}
		copyIn, failed     = &pgproto3.CopyInResponse{}, &pgproto3.ErrorResponse{Severity: "ERROR", Code: "22P02"}
		complete           = &pgproto3.CommandComplete{CommandTag: []byte("COPY 1")}
		inTx               = &pgproto3.ReadyForQuery{TxStatus: 'T'}
		inFailed           = &pgproto3.ReadyForQuery{TxStatus: 'E'}
	)
	for name, steps := range map[string][]any{
		"COPYs in a pipeline":                   {says{parse, execute, sync, data, done, sync, parse, execute, sync, data, done, sync}, answers{copyIn, complete, ready, copyIn, complete, ready}, "idle", says{query}, "active", answers{ready}, "idle"},
		"a Query behind CopyDone":               {says{query}, answers{copyIn}, says{data, done, query}, answers{complete, ready}, "active", answers{complete, ready}, "idle"},
		"a Sync behind CopyDone of a Query":     {says{query}, answers{copyIn}, says{data, done, sync}, answers{complete, ready}, "active", answers{ready}, "idle"},
		"two COPYs in one Query":                {says{query}, answers{copyIn}, says{data, done}, answers{complete, copyIn}, says{data, done}, "active", answers{complete, ready}, "idle"},
		"a COPY of a Query fails":               {says{query}, answers{copyIn}, says{data}, answers{failed, ready}, "idle", says{data, done}, "idle", says{query}, "active", answers{ready}, "idle"},
		"and its client gives it up":            {says{query}, answers{copyIn}, says{data}, answers{failed, ready}, "idle", says{data, fail}, "idle"},
		"it fails in a transaction":             {says{query}, answers{copyIn}, says{data}, answers{failed, inFailed}, says{data, data, done}, "idle in transaction"},
		"its client hears of it behind its end": {says{query}, answers{copyIn}, says{data, done, query}, answers{failed, ready}, "active", answers{ready}, "idle"},
		"data of a Query sent ahead":            {says{query}, says{data, done}, says{query}, answers{copyIn, complete, ready}, "active", answers{complete, inTx}, "idle in transaction"},
		"data of a Query sent along":            {says{query, data, done, query}, answers{copyIn, complete, ready}, "active", answers{complete, inTx}, "idle in transaction"},
		"CopyDone where nothing is copied":      {says{done}, "idle", says{query, done}, "active", answers{ready}, "idle"},
		"a COPY by Execute":                     {says{parse, execute, sync}, answers{copyIn}, says{data, done, sync}, "active", answers{complete, ready}, "idle"},
		"without the Sync that is ignored":      {says{parse, execute, flush}, answers{copyIn}, says{data, done, sync}, "active", answers{complete, ready}, "idle"},
		"a COPY by Execute, given up":           {says{parse, execute, sync}, answers{copyIn}, says{data, fail, sync}, "active", answers{failed, ready}, "idle"},
		"behind a statement, answered at once":  {says{sync, parse, execute, sync}, answers{ready, copyIn}, "active", says{data, done, sync}, "active", answers{complete, ready}, "idle"},
		"two of them without a Sync between":    {says{parse, execute, flush}, answers{copyIn}, says{data, done, parse, execute, sync}, answers{complete, copyIn}, says{data, done, sync}, "active", answers{complete, ready}, "idle"},
		"a COPY by Execute fails":               {says{parse, execute, sync}, answers{copyIn}, says{data}, answers{failed}, says{data, done, sync}, "active", answers{ready}, "idle"},
		"and its client sends Sync only":        {says{parse, execute, sync}, answers{copyIn}, says{data}, answers{failed}, says{sync}, "active", answers{ready}, "idle"},
		"it fails before any data":              {says{parse, execute, sync}, answers{copyIn, failed, ready}, "idle", says{data, done, sync}, "active", answers{ready}, "idle"},
		"it does not begin":                     {says{parse, execute, sync}, answers{failed, ready}, "idle", says{done, sync}, "active", answers{ready}, "idle"},
		"data of an Execute sent ahead":         {says{parse, execute, sync}, says{data, done, sync}, answers{copyIn}, "active", answers{complete, ready}, "idle"},
		"data of an Execute sent along":         {says{parse, execute, sync, data, done, sync}, answers{copyIn}, "active", answers{complete, ready}, "idle"},
		"sent ahead, and it does not begin":     {says{parse, execute, sync}, says{data, done, sync}, answers{failed, ready}, "active", answers{ready}, "idle"},
		"sent along, and it does not begin":     {says{parse, execute, sync, data, done, sync}, answers{failed, ready}, "active", answers{ready}, "idle"},
		"sent ahead behind a statement":         {says{query, parse, execute, sync}, says{data, done, sync}, answers{ready}, "active", answers{copyIn, complete, ready}, "idle"},
		"sent ahead, answered at once":          {says{query, parse, execute, sync}, says{data, done, sync}, answers{ready, copyIn}, "active", answers{complete, ready}, "idle"},
		"sent ahead, and more behind":           {says{parse, execute, sync}, says{data, done, sync, query}, answers{copyIn, complete, ready}, "idle", answers{ready}, "idle"}, // early, by the Query
		"COPY to the client":                    {says{query}, answers{&pgproto3.CopyOutResponse{}, &pgproto3.CopyData{}, &pgproto3.CopyDone{}}, "active", answers{complete, ready}, "idle"},
		"both ways, as replication does":        {says{query}, answers{&pgproto3.CopyBothResponse{}, &pgproto3.CopyData{}}, says{data}, "active", says{done}, answers{&pgproto3.CopyDone{}, complete}, "active", answers{complete, ready}, "idle"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newDialog(t).plays(steps)
		})
	}
}

// A Terminate inside an unfinished message would be taken for part of it.
func TestNoTerminateFallsIntoAMessage(t *testing.T) {
	t.Parallel()
	for name, piece := range map[string]string{"a header": "Q\x00\x00", "a body": "P\x00\x00\x00\x20S", "data of a COPY that failed": "d\x00\x00\x00\x20S"} {
		d := newDialog(t, func(c *pgwire.Config) { c.DrainTimeout = 300 * time.Millisecond })
		query, _ := (&pgproto3.Query{String: "x"}).Encode(nil)
		if _, err := d.client.Write(append(query, piece...)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(d.server, make([]byte, len(query)+len(piece))); err != nil {
			t.Fatal(err)
		}
		d.answers(ready)
		d.ask()
		if rest, _ := io.ReadAll(d.server); len(rest) > 0 {
			t.Errorf("%s: PostgreSQL got %q behind it", name, rest)
		}
		if code, text := finalError(t, d.client); code != "57P01" {
			t.Errorf("%s: %s %s", name, code, text)
		}
		d.stop()
	}
}

// A stop while a client sends data that PostgreSQL ignores ends the session after that message, not at the drain
// timeout.
func TestAStopEndsASessionWhenTheRestOfItsCopyHasPassed(t *testing.T) {
	t.Parallel()
	d := newDialog(t, func(c *pgwire.Config) { c.DrainTimeout = 2 * time.Minute })
	d.says(&pgproto3.Query{String: "COPY t FROM STDIN"})
	d.answers(&pgproto3.CopyInResponse{})
	d.answers(&pgproto3.ErrorResponse{Severity: "ERROR"}, ready)
	row, _ := (&pgproto3.CopyData{Data: make([]byte, 1000)}).Encode(nil)
	if _, err := d.client.Write(row[:500]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(d.server, make([]byte, 500)); err != nil {
		t.Fatal(err)
	}
	d.ask()
	refusing(t, d.relay)
	if _, err := d.client.Write(row[500:]); err != nil {
		t.Fatal(err)
	}
	code, text := finalError(t, d.client)
	if code != "57P01" {
		t.Errorf("%s %s", code, text)
	}
	if rest, _ := io.ReadAll(d.server); len(rest) < 500+len(row)-1000 {
		t.Errorf("PostgreSQL got %d bytes more", len(rest))
	}
}

// A client that has sent everything may close its half; it still receives its answer, and no error.
func TestAClientThatSendsNoMoreHearsItsAnswerAndNoError(t *testing.T) {
	t.Parallel()
	var log buffer
	d := newDialog(t, func(c *pgwire.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	d.says(&pgproto3.Query{String: "x"})
	if err := d.client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := d.server.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("PostgreSQL reads %d bytes, %v; want the end", n, err)
	}
	d.answers(ready)
	_ = d.server.Close()
	if m, err := d.front.Receive(); err == nil {
		t.Errorf("behind the answer: %+v", m)
	}
	d.stop()
	if text := log.String(); strings.Contains(text, "ended early") {
		t.Errorf("the log says:\n%s", text)
	}
}

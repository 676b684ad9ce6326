package primary

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/lock/continuity"
)

// server answers logins, and says whether it is a standby.
type server struct {
	addr    string
	standby atomic.Bool
	logins  atomic.Int64
}

func newServer(t *testing.T, standby bool) *server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &server{addr: ln.Addr().String()}
	h.standby.Store(standby)
	ended := make(chan struct{})
	t.Cleanup(func() { _ = ln.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			h.serve(conn)
			_ = conn.Close()
		}
	}()
	return h
}

func (h *server) serve(conn net.Conn) {
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	h.logins.Add(1)
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	_ = backend.Flush()
	for {
		m, err := backend.Receive()
		if err != nil {
			return
		}
		query, ok := m.(*pgproto3.Query)
		if !ok {
			continue
		}
		answers := map[bool]string{true: "on", false: "off"} // of transaction_read_only
		if strings.Contains(query.String, "pg_is_in_recovery") {
			answers = map[bool]string{true: "t", false: "f"}
		}
		backend.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("x")}}})
		backend.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(answers[h.standby.Load()])}})
		backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		_ = backend.Flush()
	}
}

func TestTargetSessionAttrsChooseTheHost(t *testing.T) {
	t.Parallel()
	standby, primary := newServer(t, true), newServer(t, false)
	for attrs, want := range map[string]string{
		"primary": primary.addr, "read-write": primary.addr, "standby": standby.addr, "read-only": standby.addr,
		"prefer-standby": standby.addr,
	} {
		config, err := pgx.ParseConfig("postgres://u@" + primary.addr + "," + standby.addr + "/d?sslmode=disable&target_session_attrs=" + attrs)
		if err != nil {
			t.Fatal(err)
		}
		c := newChoice(config)
		c.grace = time.Minute // all hosts answer, however late
		if home, err := c.Current(t.Context()); err != nil || home.Addr != want {
			t.Errorf("%s: %q, %v; want %q", attrs, home.Addr, err, want)
		}
		before := standby.logins.Load()
		c.servedAt = time.Now().Add(time.Minute) // so that it chooses at once, however slow the machine is
		if _, err := c.Current(t.Context()); err != nil || standby.logins.Load() != before {
			t.Errorf("%s: asked again at once: %v", attrs, err)
		}
	}
	config, err := pgx.ParseConfig("postgres://u@" + standby.addr + "/d?sslmode=disable&target_session_attrs=primary")
	if err != nil {
		t.Fatal(err)
	}
	c := newChoice(config)
	if _, err := c.Current(context.Background()); !errors.Is(err, pgconn.ErrStandbyConnection) {
		t.Errorf("no primary: %v", err)
	}
	standby.standby.Store(false) // promoted
	if home, err := c.Current(t.Context()); err != nil {
		t.Errorf("after the promotion: %v, %v; a failure must not be remembered", home, err)
	}
}

func TestAHostThatAnswersNothingDelaysNoLogin(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	primary := newServer(t, false)
	for _, attrs := range []string{"primary", "read-write", "prefer-standby"} {
		config, err := pgx.ParseConfig("postgres://u@" + silent.Addr().String() + "," + primary.addr + "/d?sslmode=disable&target_session_attrs=" + attrs)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		home, err := newChoice(config).Current(ctx)
		if err != nil || home.Addr != primary.addr || ctx.Err() != nil {
			t.Errorf("%s: %v, %v; want the primary, before the time is over (%v)", attrs, home, err, ctx.Err())
		}
		cancel()
	}
}

// Another server can also appear behind the same address: the context of here then ends.
func TestWhoIsHereLeavesTheServerThatIsNotHomeAnyMore(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig("postgres://u@a:1/d")
	if err != nil {
		t.Fatal(err)
	}
	c := newChoice(config)
	found := func(server string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.doubt()
		c.take(c.home, server, &continuity.State{Identity: server})
	}
	found("1/1/1")
	ctx, leave := c.Here(t.Context())
	defer leave()
	found("1/1/1") // the same server after a restart
	if ctx.Err() != nil {
		t.Fatal("left where the server is the same")
	}
	found("1/2/1")
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		t.Error("stays where another server is home")
	}
}

func TestWithoutAHostNothingWasSent(t *testing.T) {
	t.Parallel()
	if !Unconnected(&noHostError{errors.New("none answers")}) {
		t.Error("a statement may have been sent")
	}
}

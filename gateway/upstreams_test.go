package gateway

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/lock/continuity"
)

func TestRelayGoesToEachHostOfTheAddressOnce(t *testing.T) {
	t.Parallel()
	for address, want := range map[string][]string{
		"postgres://u@a:1/d":                                            {"tcp a:1 plain"},
		"postgres://u@a:1/d?sslmode=disable":                            {"tcp a:1 plain"},
		"postgres://u@a:1/d?sslmode=allow":                              {"tcp a:1 plain"},
		"postgres://u@a:1/d?sslmode=prefer":                             {"tcp a:1 plain"},
		"postgres://u@a:1/d?sslmode=require":                            {"tcp a:1 unverified"},
		"postgres://u@a:1/d?sslmode=verify-ca":                          {"tcp a:1 authority"},
		"postgres://u@a:1/d?sslmode=verify-full":                        {"tcp a:1 verified as a"},
		"postgres://u@a:1/d?sslmode=verify-full&sslnegotiation=direct":  {"tcp a:1 verified as a directly"},
		"postgres://u@a:1,b:2/d":                                        {"tcp a:1 plain", "tcp b:2 plain"},
		"postgres://u@a:1,b:2/d?sslmode=verify-full":                    {"tcp a:1 verified as a", "tcp b:2 verified as b"},
		"host=/run/x port=7 user=u sslmode=require":                     {"unix /run/x/.s.PGSQL.7 plain"},
		"host=/run/x,::1,b port=7,8,9 user=u sslmode=disable dbname=d ": {"unix /run/x/.s.PGSQL.7 plain", "tcp [::1]:8 plain", "tcp b:9 plain"},
	} {
		config, err := pgconn.ParseConfig(address)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, u := range upstreams(config) {
			got = append(got, describe(u))
		}
		if strings.Join(got, "; ") != strings.Join(want, "; ") {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}

func describe(u pgwire.Upstream) string {
	text := u.Network + " " + u.Addr
	switch {
	case u.TLS == nil:
		text += " plain"
	case u.TLS.VerifyPeerCertificate != nil:
		text += " authority"
	case u.TLS.InsecureSkipVerify:
		text += " unverified"
	default:
		text += " verified as " + u.TLS.ServerName
	}
	if u.DirectTLS {
		text += " directly"
	}
	return text
}

// host answers logins, and says whether it is a standby.
type host struct {
	addr    string
	standby atomic.Bool
	logins  atomic.Int64
}

func newHost(t *testing.T, standby bool) *host {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{addr: ln.Addr().String()}
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

func (h *host) serve(conn net.Conn) {
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
	standby, primary := newHost(t, true), newHost(t, false)
	for attrs, want := range map[string]string{
		"primary": primary.addr, "read-write": primary.addr, "standby": standby.addr, "read-only": standby.addr,
		"prefer-standby": standby.addr,
	} {
		config, err := pgx.ParseConfig("postgres://u@" + primary.addr + "," + standby.addr + "/d?sslmode=disable&target_session_attrs=" + attrs)
		if err != nil {
			t.Fatal(err)
		}
		relay := newServers(config)
		relay.grace = time.Minute // all hosts answer, however late
		var got []string
		ways, err := relay.suitable(t.Context())
		for _, u := range ways {
			got = append(got, u.Addr)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v; want %q", attrs, got, err, want)
		}
		before := standby.logins.Load()
		relay.looked = time.Now().Add(time.Minute) // so that it chooses at once, however slow the machine is
		if _, err := relay.suitable(t.Context()); err != nil || standby.logins.Load() != before {
			t.Errorf("%s: asked again at once: %v", attrs, err)
		}
	}
	config, err := pgx.ParseConfig("postgres://u@" + standby.addr + "/d?sslmode=disable&target_session_attrs=primary")
	if err != nil {
		t.Fatal(err)
	}
	relay := relayed(newServers(config), nil, Config{})
	if _, err := relay.Suitable(context.Background()); !errors.Is(err, pgconn.ErrStandbyConnection) {
		t.Errorf("no primary: %v", err)
	}
	standby.standby.Store(false) // promoted
	if ways, err := relay.Suitable(t.Context()); err != nil || len(ways) != 1 {
		t.Errorf("after the promotion: %v, %v; a failure must not be remembered", ways, err)
	}
}

func TestVerifyCAReadsTheAuthority(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca")
	if err := os.WriteFile(file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := New(Config{PostgresURL: "postgres://u@h/d?sslmode=verify-ca&sslrootcert=" + file})
	if err == nil {
		t.Error("an authority that can't be read passed")
	}
}

func TestAHostThatAnswersNothingDelaysNoLogin(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	primary := newHost(t, false)
	for _, attrs := range []string{"primary", "read-write", "prefer-standby"} {
		config, err := pgx.ParseConfig("postgres://u@" + silent.Addr().String() + "," + primary.addr + "/d?sslmode=disable&target_session_attrs=" + attrs)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		ways, err := relayed(newServers(config), nil, Config{}).Suitable(ctx)
		if err != nil || len(ways) != 1 || ways[0].Addr != primary.addr || ctx.Err() != nil {
			t.Errorf("%s: %v, %v; want the primary, before the time is over (%v)", attrs, ways, err, ctx.Err())
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
	s := newServers(config)
	found := func(server string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.doubt()
		s.take(s.home, server, &continuity.Seen{Identity: server})
	}
	found("1/1/1")
	ctx, leave := s.here(t.Context())
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

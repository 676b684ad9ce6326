//go:build unix

package pgwire_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

// upstream is a fake PostgreSQL: script serves each connection.
func upstream(t testing.TB, script func(net.Conn)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = ln.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				script(conn)
			}()
		}
	}()
	return ln.Addr().String()
}

func encode(messages ...pgproto3.BackendMessage) (b []byte) {
	for _, m := range messages {
		b, _ = m.Encode(b)
	}
	return b
}

var (
	authOK  = &pgproto3.AuthenticationOk{}
	ready   = &pgproto3.ReadyForQuery{TxStatus: 'I'}
	startup = &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "ada", "database": "shop"}}
)

// readStartup reads a startup packet and returns it unchanged.
func readStartup(conn net.Conn) []byte {
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil
	}
	packet := make([]byte, binary.BigEndian.Uint32(head[:]))
	copy(packet, head[:])
	if _, err := io.ReadFull(conn, packet[4:]); err != nil {
		return nil
	}
	return packet
}

// dial connects to the relay; every read and write has a deadline.
func (r *relay) dial() net.Conn {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return conn
}

func send(t testing.TB, conn net.Conn, messages ...pgproto3.FrontendMessage) {
	t.Helper()
	var b []byte
	for _, m := range messages {
		b, _ = m.Encode(b)
	}
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
}

// size returns how many bytes [send] writes.
func size(messages ...pgproto3.FrontendMessage) int {
	var b []byte
	for _, m := range messages {
		b, _ = m.Encode(b)
	}
	return len(b)
}

// finalError reads messages up to an error, whose code and text it returns, and checks that the connection is closed
// afterwards.
func finalError(t *testing.T, conn net.Conn) (code, message string) {
	t.Helper()
	frontend := pgproto3.NewFrontend(conn, conn)
	for {
		m, err := frontend.Receive()
		if err != nil {
			return "", err.Error()
		}
		e, ok := m.(*pgproto3.ErrorResponse)
		if !ok {
			continue
		}
		code, message = e.Code, e.Severity+" "+e.Message+" "+e.Hint
		if _, err := frontend.Receive(); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("behind the error: %v, want the end", err)
		}
		return code, message
	}
}

func TestStartupBytesGoOnVerbatim(t *testing.T) {
	t.Parallel()
	got := make(chan []byte, 1)
	r := start(t, "tcp", upstream(t, func(conn net.Conn) {
		got <- readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		_, _ = io.Copy(io.Discard, conn)
	}), "shop")
	// Repeated names, an option of the protocol, protocol 3.2, odd quoting.
	packet := []byte("\x00\x00\x00\x00\x00\x03\x00\x02user\x00ada\x00_pq_.some\x00x\x00options\x00-c  a.b=c\\ d\x00user\x00ada\x00database\x00shop\x00\x00")
	binary.BigEndian.PutUint32(packet, uint32(len(packet)))
	conn := r.dial()
	if _, err := conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	if b := <-got; string(b) != string(packet) {
		t.Errorf("PostgreSQL got %q, want %q", b, packet)
	}
	answer := make([]byte, len(encode(authOK, ready)))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != string(encode(authOK, ready)) {
		t.Errorf("the client got %q, %v", answer, err)
	}
}

func TestCancelRequestGoesOnVerbatimWithALongKey(t *testing.T) {
	t.Parallel()
	got := make(chan []byte, 1)
	r := start(t, "tcp", upstream(t, func(conn net.Conn) { got <- readStartup(conn) }), "shop")
	packet := append(binary.BigEndian.AppendUint32(nil, 12+256), "\x04\xd2\x16\x2e\x00\x00\x00\x07"+strings.Repeat("k", 256)...)
	conn := r.dial()
	if _, err := conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	if b := <-got; string(b) != string(packet) {
		t.Errorf("PostgreSQL got %d bytes, want the %d verbatim", len(b), len(packet))
	}
	if b, err := io.ReadAll(conn); err != nil || len(b) != 0 {
		t.Errorf("the client got %q, %v; want only the end", b, err)
	}
}

func TestBadOpeningsAreToldWhy(t *testing.T) {
	t.Parallel()
	r := start(t, "tcp", upstream(t, func(net.Conn) {}), "shop")
	for name, c := range map[string]struct{ bytes, code, says string }{
		"HTTP":             {"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + strings.Repeat("x", 100_000), "08P01", "FATAL invalid length of startup packet"},
		"too short":        {"\x00\x00\x00\x07\x00\x03\x00\x00", "08P01", "7 bytes"},
		"too long":         {"\x00\x00\x27\x11\x00\x03\x00\x00" + strings.Repeat("x", 20_000), "08P01", "10001 bytes"},
		"no terminator":    {"\x00\x00\x00\x0c\x00\x03\x00\x00user", "08P01", "terminator"},
		"protocol 2":       {"\x00\x00\x00\x08\x00\x02\x00\x00", "0A000", "protocol 2.0"},
		"no user":          {"\x00\x00\x00\x09\x00\x03\x00\x00\x00", "28000", "no PostgreSQL user"},
		"another database": {"\x00\x00\x00\x1d\x00\x03\x00\x00user\x00ada\x00database\x00x\x00\x00", "3D000", `FATAL database "x" is not served here A gateway serves one database`},
		"database by user": {"\x00\x00\x00\x12\x00\x03\x00\x00user\x00ada\x00\x00", "3D000", `"ada"`},
		"SSLRequest twice": {"\x00\x00\x00\x08\x04\xd2\x16\x2f\x00\x00\x00\x08\x04\xd2\x16\x2f", "0A000", "protocol 1234.5679"},
		"GSSENC with data": {"\x00\x00\x00\x09\x04\xd2\x16\x30x", "0A000", "protocol 1234.5680"},
		"TLS from nowhere": {"\x16\x03\x01\x02\x00\x01\x00\x01", "08P01", "invalid length"},
	} {
		if name == "another database" || name == "database by user" {
			b := []byte(c.bytes)
			binary.BigEndian.PutUint32(b, uint32(len(b)))
			c.bytes = string(b)
		}
		conn := r.dial()
		if _, err := conn.Write([]byte(c.bytes)); err != nil {
			t.Fatal(err)
		}
		if name == "SSLRequest twice" {
			one := make([]byte, 1)
			if _, err := io.ReadFull(conn, one); err != nil || one[0] != 'N' {
				t.Errorf("SSLRequest without TLS: %q, %v; want N", one, err)
			}
		}
		if code, message := finalError(t, conn); code != c.code || !strings.Contains(message, c.says) {
			t.Errorf("%s: %s %s; want %s … %s", name, code, message, c.code, c.says)
		} else if strings.Contains(message, "shop") {
			t.Errorf("%s: a stranger learns the database's name: %s", name, message)
		}
	}
	testenv.Eventually(t, "all are counted as refused", func() error {
		if got := r.srv.Stats(); got.Refused != 11 || got.Sessions != 0 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}

func TestEncryptionRequestsAreDeclinedInEitherOrder(t *testing.T) {
	t.Parallel()
	r := start(t, "tcp", upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		_, _ = io.Copy(io.Discard, conn)
	}), "shop")
	for _, order := range [][]pgproto3.FrontendMessage{
		{&pgproto3.SSLRequest{}, &pgproto3.GSSEncRequest{}}, {&pgproto3.GSSEncRequest{}, &pgproto3.SSLRequest{}}, {&pgproto3.GSSEncRequest{}}, {},
	} {
		conn := r.dial()
		for _, ask := range order {
			send(t, conn, ask)
			one := make([]byte, 1)
			if _, err := io.ReadFull(conn, one); err != nil || one[0] != 'N' {
				t.Fatalf("%T: %q, %v; want N", ask, one, err)
			}
		}
		send(t, conn, startup)
		if m, err := pgproto3.NewFrontend(conn, conn).Receive(); err != nil {
			t.Errorf("after %d requests: %v %v", len(order), m, err)
		}
	}
}

// TestUpstreamThatDies ends PostgreSQL in each state of the protocol.
func TestUpstreamThatDies(t *testing.T) {
	t.Parallel()
	const lost = "has lost its connection to PostgreSQL"
	fatal := &pgproto3.ErrorResponse{Severity: "FATAL", Code: "53300", Message: "too many clients"}
	row := encode(&pgproto3.DataRow{Values: [][]byte{[]byte("0123456789")}})
	for name, c := range map[string]struct {
		sends      []byte
		code, says string
	}{
		"before it said anything":    {nil, "08006", lost},
		"after a refusal of its own": {encode(fatal), "53300", "too many clients"},
		"in the login":               {encode(&pgproto3.AuthenticationCleartextPassword{}), "08006", lost},
		"in a message of the login":  {encode(authOK)[:6], "", "EOF"},
		"idle":                       {encode(authOK, ready), "08006", lost},
		"in ReadyForQuery":           {encode(authOK, ready)[:len(encode(authOK, ready))-1], "", "EOF"},
		"between the rows":           {append(encode(authOK, ready), row...), "08006", lost},
		"in a row":                   {append(encode(authOK, ready), row[:len(row)-3]...), "", "EOF"},
		"in a header":                {append(encode(authOK, ready), row[:3]...), "", "EOF"},
		"after a FATAL of its own":   {append(encode(authOK, ready), encode(fatal)...), "53300", "too many clients"},
		"with an impossible length":  {append(encode(authOK, ready), 'D', 0, 0, 0, 1), "", ""},
		"after a notice":             {append(encode(authOK, ready), encode(&pgproto3.NoticeResponse{Message: "x"})...), "08006", lost},
	} {
		r := start(t, "tcp", upstream(t, func(conn net.Conn) {
			readStartup(conn)
			_, _ = conn.Write(c.sends)
		}), "shop")
		conn := r.dial()
		send(t, conn, startup)
		code, message := finalError(t, conn)
		if code != c.code || !strings.Contains(message, c.says) {
			t.Errorf("%s: %q %q; want %q … %q", name, code, message, c.code, c.says)
		}
		r.stop()
	}
}

func TestLoginIsBounded(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	addr := upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(&pgproto3.AuthenticationCleartextPassword{}))
		asked <- struct{}{}
		_, _ = io.Copy(io.Discard, conn)
	})
	r := start(t, "tcp", addr, "shop", func(c *pgwire.Config) { c.LoginTimeout = 200 * time.Millisecond })
	for name, opening := range map[string]string{"silence": "", "half a length": "\x00\x00", "half a packet": "\x00\x00\x00\x20\x00\x03\x00\x00user"} {
		conn := r.dial()
		if _, err := conn.Write([]byte(opening)); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(conn); err != nil || len(b) != 0 {
			t.Errorf("%s: %q, %v; want the end", name, b, err)
		}
	}
	// Within this time PostgreSQL must be reached, also on a busy machine.
	conn := start(t, "tcp", addr, "shop", func(c *pgwire.Config) { c.LoginTimeout = 6 * time.Second }).dial()
	send(t, conn, startup)
	if code, message := finalError(t, conn); code != "08006" || !strings.Contains(message, "login took too long") {
		t.Errorf("a login without an end: %s %s", code, message)
	}
	if len(asked) == 0 {
		t.Error("PostgreSQL was not asked")
	}
}

func TestHalfClosedClientGetsItsAnswer(t *testing.T) {
	t.Parallel()
	r := start(t, "tcp", upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		_, _ = io.Copy(io.Discard, conn) // until the client closes
		_, _ = conn.Write(encode(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")}, ready))
	}), "shop")
	conn := r.dial()
	send(t, conn, startup, &pgproto3.Query{String: "SELECT 1"})
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(b), "SELECT 1") {
		t.Errorf("got %q, %v", b, err)
	}
}

// refusing waits until the relay refuses connections, so the stop has begun.
func refusing(t *testing.T, r *relay) {
	t.Helper()
	testenv.Eventually(t, "the relay refuses connections", func() bool {
		dialer := net.Dialer{Timeout: time.Second}
		c, err := dialer.DialContext(context.Background(), "tcp", r.addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
}

package main

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// pgTalk holds sessions of the PostgreSQL port that are in the transcript.
type pgTalk struct {
	ctx context.Context
	w   *world
	b   *book
	err error
}

// session is one connection.
type session struct {
	t     *pgTalk
	conn  net.Conn
	front *pgproto3.Frontend
	over  bool
	key   *pgproto3.BackendKeyData
	began bool // it was ready
	ended bool // by the gateway or PostgreSQL, after it was ready
}

// open logs in with parameters: name, value, name, value …
func (t *pgTalk) open(parameters ...string) *session {
	s := &session{t: t, over: true}
	if t.err != nil {
		return s
	}
	var what []string
	startup := &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"database": database}}
	for i := 0; i+1 < len(parameters); i += 2 {
		startup.Parameters[parameters[i]] = parameters[i+1]
	}
	for _, name := range sorted(startup.Parameters) {
		what = append(what, name+"="+startup.Parameters[name])
	}
	t.b.linef("=== %s", strings.Join(what, " "))
	if s.conn, t.err = dial(t.ctx, t.w.pgPort); t.err != nil {
		return s
	}
	s.front, s.over = pgproto3.NewFrontend(s.conn, s.conn), false
	s.front.Send(startup)
	s.flush()
	s.login(startup.Parameters["user"])
	return s
}

func (s *session) flush() {
	if err := s.front.Flush(); err != nil {
		s.over = true
	}
}

// close ends the session.
func (s *session) close() {
	if s.conn == nil {
		return
	}
	if !s.over {
		s.front.Send(&pgproto3.Terminate{})
		s.flush()
	}
	_ = s.conn.Close()
	s.t.b.out.WriteByte('\n')
}

// undisturbed repeats a session with a stale grant until it completes before the gateway, which checks the fences once
// a second, ends it.
func (t *pgTalk) undisturbed(play func() *session) {
	for range 10 {
		began := t.b.out.Len()
		if s := play(); !s.ended || t.err != nil {
			return
		}
		t.b.out.Truncate(began)
	}
	t.err = errors.New("the gateway ended each session with a stale grant at once")
}

// login answers the authentication requests until the session is ready or refused.
func (s *session) login(user string) {
	secret := password
	if strings.HasPrefix(user, "wrong_") {
		secret = "wrong"
	}
	var proof *scram
	for {
		m := s.receive()
		if m == nil {
			return
		}
		switch m := m.(type) {
		case *pgproto3.AuthenticationCleartextPassword:
			s.front.Send(&pgproto3.PasswordMessage{Password: secret})
		case *pgproto3.AuthenticationMD5Password:
			s.front.Send(&pgproto3.PasswordMessage{Password: "md5" + sumOf(sumOf(secret+user)+string(m.Salt[:]))})
		case *pgproto3.AuthenticationSASL:
			proof = newScram(secret)
			s.front.Send(&pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte(proof.first())})
		case *pgproto3.AuthenticationSASLContinue:
			s.front.Send(&pgproto3.SASLResponse{Data: []byte(proof.final(string(m.Data)))})
		case *pgproto3.BackendKeyData:
			s.key = &pgproto3.BackendKeyData{ProcessID: m.ProcessID, SecretKey: append([]byte(nil), m.SecretKey...)}
		case *pgproto3.ReadyForQuery:
			return
		}
		s.flush()
	}
}

// receive reads one message and records it; nil at the end.
func (s *session) receive() pgproto3.BackendMessage {
	if s.over {
		return nil
	}
	m, err := s.front.Receive()
	if err != nil {
		s.over = true
		if netErr, ok := errors.AsType[net.Error](err); ok && netErr.Timeout() {
			s.t.err = err
			return nil
		}
		s.t.b.linef("< (closed)")
		return nil
	}
	switch m := m.(type) {
	case *pgproto3.ReadyForQuery:
		s.began = true
	case *pgproto3.ErrorResponse:
		s.ended = s.ended || s.began && m.Severity == "FATAL"
	}
	s.t.b.lines("< ", described(m))
	return m
}

// ready reads until the session is ready or has ended.
func (s *session) ready() {
	for {
		m := s.receive()
		if m == nil {
			return
		}
		switch m.(type) {
		case *pgproto3.ReadyForQuery, *pgproto3.CopyInResponse, *pgproto3.CopyBothResponse:
			return
		}
	}
}

// query runs statements with the simple protocol.
func (s *session) query(sql string) {
	if s.over {
		return
	}
	s.t.b.lines("> Query ", sql)
	s.front.Send(&pgproto3.Query{String: sql})
	s.flush()
	s.ready()
}

// send sends messages of the extended protocol.
func (s *session) send(messages ...pgproto3.FrontendMessage) {
	if s.over {
		return
	}
	for _, m := range messages {
		s.t.b.linef("> %s", strings.TrimPrefix(fmt.Sprintf("%T", m), "*pgproto3."))
		s.front.Send(m)
	}
	s.flush()
}

// untilOver reads until the gateway closes the connection.
func (s *session) untilOver() {
	for s.receive() != nil {
	}
}

// described describes a message.
func described(m pgproto3.BackendMessage) string {
	switch m := m.(type) {
	case *pgproto3.ParameterStatus:
		if m.Name == "server_version" {
			return "ParameterStatus server_version=<version>"
		}
		return "ParameterStatus " + m.Name + "=" + m.Value
	case *pgproto3.BackendKeyData:
		return "BackendKeyData"
	case *pgproto3.ReadyForQuery:
		return "ReadyForQuery " + string(m.TxStatus)
	case *pgproto3.AuthenticationSASL:
		return "AuthenticationSASL " + strings.Join(m.AuthMechanisms, ", ")
	case *pgproto3.CommandComplete:
		return "CommandComplete " + string(m.CommandTag)
	case *pgproto3.RowDescription:
		var names []string
		for _, f := range m.Fields {
			names = append(names, string(f.Name))
		}
		return "RowDescription " + strings.Join(names, ", ")
	case *pgproto3.DataRow:
		var values []string
		for _, v := range m.Values {
			values = append(values, fmt.Sprintf("%q", v))
		}
		return "DataRow " + strings.Join(values, ", ")
	case *pgproto3.ErrorResponse:
		return "ErrorResponse" + fields(m)
	case *pgproto3.NoticeResponse:
		return "NoticeResponse" + fields((*pgproto3.ErrorResponse)(m))
	case *pgproto3.NotificationResponse:
		return "NotificationResponse " + m.Channel + " " + m.Payload
	case *pgproto3.CopyData:
		return fmt.Sprintf("CopyData %q", m.Data)
	case *pgproto3.NegotiateProtocolVersion:
		return fmt.Sprintf("NegotiateProtocolVersion %d %v", m.NewestMinorProtocol, m.UnrecognizedOptions)
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", m), "*pgproto3.")
}

// fields returns the fields of an error that concern users. The
// file and function where it was raised are PostgreSQL's own.
func fields(e *pgproto3.ErrorResponse) string {
	var out strings.Builder
	for _, f := range [][2]string{
		{"severity", e.Severity},
		{"unlocalized", e.SeverityUnlocalized},
		{"code", e.Code},
		{"message", e.Message},
		{"detail", e.Detail},
		{"hint", e.Hint},
		{"schema", e.SchemaName},
		{"table", e.TableName},
		{"column", e.ColumnName},
		{"constraint", e.ConstraintName},
	} {
		if f[1] != "" {
			out.WriteString("\n  " + f[0] + ": " + f[1])
		}
	}
	return out.String()
}

// scram is the client side of SCRAM-SHA-256 (RFC 5802, RFC 7677).
type scram struct{ secret, bare string }

func newScram(secret string) *scram { return &scram{secret: secret, bare: "n=,r=golden"} }

func (s *scram) first() string { return "n,," + s.bare }

func (s *scram) final(server string) string {
	var nonce, salt string
	iterations := 0
	for part := range strings.SplitSeq(server, ",") {
		switch {
		case strings.HasPrefix(part, "r="):
			nonce = part[2:]
		case strings.HasPrefix(part, "s="):
			salt = part[2:]
		case strings.HasPrefix(part, "i="):
			_, _ = fmt.Sscan(part[2:], &iterations)
		}
	}
	raw, _ := base64.StdEncoding.DecodeString(salt)
	salted, _ := pbkdf2.Key(sha256.New, s.secret, raw, iterations, sha256.Size)
	client := hmacSum(salted, []byte("Client Key"))
	stored := sha256.Sum256(client)
	bare := "c=biws,r=" + nonce
	mac := hmac.New(sha256.New, stored[:])
	_, _ = io.WriteString(mac, s.bare+","+server+","+bare)
	for i, x := range mac.Sum(nil) {
		client[i] ^= x
	}
	return bare + ",p=" + base64.StdEncoding.EncodeToString(client)
}

// packet sends bytes before any session and records the answer: at most n bytes, or, if n is 0, all until the gateway
// closes the connection.
func (t *pgTalk) packet(what string, sent []byte, n int) {
	if t.err != nil {
		return
	}
	t.b.linef("=== %s", what)
	conn, err := dial(t.ctx, t.w.pgPort)
	if err != nil {
		t.err = err
		return
	}
	defer func() { _ = conn.Close() }()
	if _, t.err = conn.Write(sent); t.err != nil {
		return
	}
	var got []byte
	if n > 0 {
		got = make([]byte, n)
		_, err = io.ReadFull(conn, got)
		t.b.linef("< %q", got)
	} else if got, err = io.ReadAll(conn); len(got) > 5 && got[0] == 'E' {
		var e pgproto3.ErrorResponse
		if t.err = e.Decode(got[5:]); t.err == nil {
			t.b.lines("< ", described(&e))
		}
	} else {
		t.b.linef("< %q (closed)", got)
	}
	if netErr, ok := errors.AsType[net.Error](err); ok && netErr.Timeout() {
		t.err = fmt.Errorf("%s: %w", what, err)
	}
}

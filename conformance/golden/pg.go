package main

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// session is a connection to the PostgreSQL port that is in the transcript. Its methods panic with a failure.
type session struct {
	t     *transcript
	conn  net.Conn
	front *pgproto3.Frontend
	over  bool // the gateway or PostgreSQL closed the connection
}

// login sends a startup message and answers the authentication requests until the session is ready or refused. It returns
// the session's CancelRequest, escaped.
func (s *session) login(parameters map[string]string) (cancel string) {
	s.flush(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: parameters})
	for {
		switch m := s.receive().(type) {
		case nil, *pgproto3.ReadyForQuery:
			return cancel
		case *pgproto3.AuthenticationCleartextPassword:
			s.flush(&pgproto3.PasswordMessage{Password: password})
		case *pgproto3.AuthenticationMD5Password:
			s.flush(&pgproto3.PasswordMessage{Password: "md5" + md5Of(md5Of(password+parameters["user"])+string(m.Salt[:]))})
		case *pgproto3.AuthenticationSASL:
			s.flush(&pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte("n,," + scramFirst)})
		case *pgproto3.AuthenticationSASLContinue:
			s.flush(&pgproto3.SASLResponse{Data: []byte(scramFinal(password, string(m.Data)))})
		case *pgproto3.BackendKeyData:
			request := must((&pgproto3.CancelRequest{ProcessID: m.ProcessID, SecretKey: m.SecretKey}).Encode(nil))
			cancel = strings.Trim(strconv.QuoteToASCII(string(request)), `"`)
		}
	}
}

func (s *session) flush(messages ...pgproto3.FrontendMessage) {
	for _, m := range messages {
		s.front.Send(m)
	}
	_ = s.front.Flush() // receive notices
}

// close ends the session.
func (s *session) close() {
	s.flush(&pgproto3.Terminate{})
	_ = s.conn.Close()
	s.t.write("\n")
}

// receive reads one message and records it; nil at the end.
func (s *session) receive() pgproto3.BackendMessage {
	if s.over {
		return nil
	}
	m, err := s.front.Receive()
	if err != nil {
		notTimeout(err)
		s.over = true
		s.t.linef("< (closed)")
		return nil
	}
	s.t.prefixed("< ", described(m))
	return m
}

// notTimeout fails if the error is a timeout: others are how a connection ends.
func notTimeout(err error) {
	if netErr, is := errors.AsType[net.Error](err); is && netErr.Timeout() {
		try(err)
	}
}

// ready reads until the session is ready or has ended.
func (s *session) ready(string) {
	for {
		switch s.receive().(type) {
		case nil, *pgproto3.ReadyForQuery, *pgproto3.CopyInResponse, *pgproto3.CopyBothResponse:
			return
		}
	}
}

// untilClosed reads until the gateway closes the connection.
func (s *session) untilClosed(string) {
	for s.receive() != nil { // receive records
	}
}

// query runs statements with the simple protocol.
func (s *session) query(sql string) {
	if !s.over {
		s.t.prefixed("> Query ", sql)
		s.flush(&pgproto3.Query{String: sql})
		s.ready("")
	}
}

// send sends messages of the extended protocol, and reads until the session is ready.
func (s *session) send(messages []pgproto3.FrontendMessage) {
	if !s.over {
		for _, m := range messages {
			s.t.linef("> %s", kind(m))
		}
		s.flush(messages...)
		s.ready("")
	}
}

// bytes sends what may be no message.
func (s *session) bytes(text string) { must(io.WriteString(s.conn, must(unquoted(text)))) }

// packet sends bytes before any session and records the answer: n bytes, or, if n is 0, all until the gateway closes the
// connection.
func (s *session) packet(sent string, n int) {
	s.bytes(sent)
	defer func() { _ = s.conn.Close() }()
	if n > 0 {
		got := make([]byte, n)
		must(io.ReadFull(s.conn, got))
		s.t.linef("< %q", got)
		return
	}
	got, err := io.ReadAll(s.conn)
	notTimeout(err)
	if len(got) < 6 || got[0] != 'E' {
		s.t.linef("< %q (closed)", got)
		return
	}
	var e pgproto3.ErrorResponse
	try(e.Decode(got[5:]))
	s.t.prefixed("< ", described(&e))
}

// newMessage reads a message: its kind, and its fields as JSON; those of CopyData are its bytes.
func newMessage(text string) pgproto3.FrontendMessage {
	name, fields, _ := strings.Cut(text, " ")
	if name == "CopyData" {
		return &pgproto3.CopyData{Data: []byte(must(unquoted(fields)))}
	}
	for _, m := range []pgproto3.FrontendMessage{
		&pgproto3.Bind{}, &pgproto3.Close{}, &pgproto3.CopyDone{}, &pgproto3.CopyFail{}, &pgproto3.Describe{}, &pgproto3.Execute{},
		&pgproto3.Flush{}, &pgproto3.FunctionCall{}, &pgproto3.Parse{}, &pgproto3.Query{}, &pgproto3.Sync{}, &pgproto3.Terminate{},
	} {
		if kind(m) == name {
			if fields != "" {
				try(json.Unmarshal([]byte(fields), m))
			}
			return m
		}
	}
	failf("unknown message %q", name)
	return nil
}

func kind(message any) string { return strings.TrimPrefix(fmt.Sprintf("%T", message), "*pgproto3.") }

// described describes a message.
func described(m pgproto3.BackendMessage) string {
	name := kind(m) + " "
	switch m := m.(type) {
	case *pgproto3.ParameterStatus:
		return name + m.Name + "=" + m.Value
	case *pgproto3.ReadyForQuery:
		return name + string(m.TxStatus)
	case *pgproto3.AuthenticationSASL:
		return name + strings.Join(m.AuthMechanisms, ", ")
	case *pgproto3.CommandComplete:
		return name + string(m.CommandTag)
	case *pgproto3.RowDescription:
		var names []string
		for _, f := range m.Fields {
			names = append(names, string(f.Name))
		}
		return name + strings.Join(names, ", ")
	case *pgproto3.DataRow:
		var values []string
		for _, v := range m.Values {
			values = append(values, fmt.Sprintf("%q", v))
		}
		return name + strings.Join(values, ", ")
	case *pgproto3.NoticeResponse:
		return name + fields((*pgproto3.ErrorResponse)(m))
	case *pgproto3.ErrorResponse:
		return name + fields(m)
	case *pgproto3.NotificationResponse:
		return name + m.Channel + " " + m.Payload
	case *pgproto3.CopyData:
		return name + fmt.Sprintf("%q", m.Data)
	case *pgproto3.NegotiateProtocolVersion:
		return name + fmt.Sprintf("%d %v", m.NewestMinorProtocol, m.UnrecognizedOptions)
	}
	return name
}

// fields returns the fields of an error that concern users. The file and function where it was raised are PostgreSQL's
// own.
func fields(e *pgproto3.ErrorResponse) (out string) {
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
			out += "\n  " + f[0] + ": " + f[1]
		}
	}
	return out
}

const scramFirst = "n=,r=golden"

// scramFinal is a client's last message of SCRAM-SHA-256 (RFC 5802, RFC 7677), which answers r=NONCE,s=SALT,i=ITERATIONS.
func scramFinal(secret, server string) string {
	parts := strings.Split(server, ",")
	salt, iterations := must(base64.StdEncoding.DecodeString(parts[1][2:])), must(strconv.Atoi(parts[2][2:]))
	client := hmacSum(must(pbkdf2.Key(sha256.New, secret, salt, iterations, sha256.Size)), []byte("Client Key"))
	stored, bare := sha256.Sum256(client), "c=biws,"+parts[0]
	for i, x := range hmacSum(stored[:], []byte(scramFirst+","+server+","+bare)) {
		client[i] ^= x
	}
	return bare + ",p=" + base64.StdEncoding.EncodeToString(client)
}

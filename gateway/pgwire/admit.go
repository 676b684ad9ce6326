package pgwire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/fence"
)

// clientLogin passes on the messages of the login and nothing else until the session is open; a statement that a client
// sends ahead waits. It returns the bytes that it has withheld, as a read would.
func (s *session) clientLogin(upstream net.Conn, from *source, stream *clientStream) ([]byte, error) {
	for {
		b, err := from.read()
		at := stream.untilStatement(b)
		if stream.terminated {
			s.leaves()
		}
		if stream.proved {
			s.proved.Store(true)
		}
		if at > 0 {
			if _, werr := upstream.Write(b[:at]); werr != nil {
				return nil, nil //nolint:nilerr // the next write fails as well
			}
		}
		switch {
		case at < len(b):
			<-s.opening.Done()
			return b[at:], err
		case err == nil, isTimeout(err) && s.deadlinePassed():
		default:
			s.endLogin()
			return nil, err
		}
	}
}

func (s *session) leaves() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
}

// untilStatement scans b up to the first message that does not belong to a login, and returns how many bytes precede
// it: len(b) if there is none.
func (c *clientStream) untilStatement(b []byte) int {
	rest := b
	for {
		if !c.lost && c.have == 0 && uint32(len(rest)) > c.skip && !ofLogin(rest[c.skip]) {
			at := len(b) - len(rest) + int(c.skip)
			c.skip = 0
			return at
		}
		var typ byte
		if typ, rest = c.next(rest); typ == 0 {
			return len(b)
		}
		c.terminated = c.terminated || typ == typeTerminate
		c.proved = c.proved || typ == typePassword
	}
}

func ofLogin(typ byte) bool { return typ == typePassword || typ == typeTerminate }

// sqlCheck lets the fence check the grant that the session presents, and returns the server's identity.
const sqlCheck = "SELECT fence.check(), identity, written FROM fence.identity()"

// dressed returns the startup packet for PostgreSQL. It is unchanged, except for a session that starts read-only, and
// for the client's address in the application_name. A replication connection keeps its application_name, because it
// identifies synchronous standbys.
func (s *session) dressed(opening packet) (packet, error) {
	s.permitted()
	var add []string
	if s.policy == PolicyReadOnly && !s.who.presents && !s.who.physical {
		add = []string{"default_transaction_read_only", "on"}
	}
	if s.srv.cfg.NamesClients && !s.who.replicates {
		if named, err := rewritten(opening, append(add, settingApplication, applicationFrom(s.who.application, s.from()))...); err == nil {
			return named, nil
		} // the packet is full: omit the name, which serves people only
	}
	if len(add) == 0 {
		return opening, nil
	}
	return rewritten(opening, add...)
}

// admit decides whether a client that has logged in receives its first ReadyForQuery. held is the beginning of that
// message, or all of it; so is the result.
func (s *session) admit(upstream net.Conn, held []byte) ([]byte, error) {
	held, err := s.admitted(upstream, held)
	if refusal, ok := asFatalError(err); ok {
		s.srv.refused(refusal)
		s.tellOf(refusal.code, refusal.detail)
		s.log().Warn("a session was refused", "sqlstate", refusal.code, "error", refusal)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cutLocked(refusal)
		return nil, errEnded
	}
	return held, err
}

func (s *session) admitted(upstream net.Conn, held []byte) ([]byte, error) {
	if !s.srv.reserve(s) {
		return nil, &fatalError{
			code: codeTooManyConnections, message: "too many connections for role " + quote(s.who.user),
			hint: "The gateway's limit of connections for one user is reached. Try again when others have ended.",
		}
	}
	switch {
	case s.policy == PolicyOpen, s.policy == PolicyReadOnly && !s.who.presents:
		return held, nil
	case !s.who.presents || s.who.physical:
		return nil, s.noGrant()
	}
	return s.checked(upstream, held)
}

func (s *session) noGrant() error {
	code, _ := fence.CodeOf(fence.ErrNoGrant)
	return &fatalError{
		code: code.SQLState, message: "a session of role " + quote(s.who.user) + " needs a grant here",
		detail: jsonOf(struct {
			User     string `json:"user"`
			Database string `json:"database"`
		}{printable(s.who.user), printable(s.who.database)}),
		hint: code.Hint + " It comes with the connection: options=-c fence.resource=… -c fence.token=….",
	}
}

// checked lets the fence check the presented grant in the session itself, as each guarded write will. It returns the
// ReadyForQuery that follows.
func (s *session) checked(upstream net.Conn, held []byte) ([]byte, error) {
	judge, refusal := s.judge()
	if refusal != nil {
		return nil, refusal
	}
	from := io.MultiReader(bytes.NewReader(held), upstream)
	for asked := false; ; {
		typ, body, err := readMessage(from)
		switch {
		case err != nil && s.ending():
			return nil, errEnded
		case err != nil:
			return nil, err
		}
		switch {
		case typ == typeReadyForQuery && !asked:
			asked = true
			query, _ := (&pgproto3.Query{String: sqlCheck}).Encode(nil) // short
			if _, err := upstream.Write(query); err != nil {
				return nil, err
			}
		case typ == typeReadyForQuery:
			return framed(typ, body), refusal
		case typ == typeError:
			refusal = s.checkRefusal(body)
		case typ == typeDataRow:
			refusal = s.learn(body, judge)
		case typ == typeParameterStatus, typ == typeNotice:
			if _, err := s.client.Write(framed(typ, body)); err != nil {
				return nil, errClientGone
			}
		}
	}
}

// judge returns the function that reports whether the session's server can judge grants.
func (s *session) judge() (func(identity string, written uint64) error, error) {
	if s.srv.cfg.Judge == nil {
		return func(string, uint64) error { return nil }, nil
	}
	ctx, cancel := context.WithTimeout(s.opening, s.srv.cfg.DialTimeout)
	defer cancel()
	judge, err := s.srv.cfg.Judge(ctx)
	if err != nil {
		return nil, unjudged(err)
	}
	return judge, nil
}

// unjudged refuses a grant because no server can judge it now.
func unjudged(err error) error {
	why := "PostgreSQL's identity is not verified"
	if told, ok := errors.AsType[interface {
		error
		Tell() string
	}](err); ok {
		why = told.Tell()
	}
	return &fatalError{
		code: codeCannotConnectNow, message: "grants can't be checked now: " + why, hint: "Nothing was done. Try again later; the gateway's log says more.", cause: err,
	}
}

// learn takes the token of a grant that was presented without it from the result of sqlCheck.
func (s *session) learn(row []byte, judge func(identity string, written uint64) error) error {
	var values pgproto3.DataRow
	if err := values.Decode(row); err != nil {
		return err
	}
	if len(values.Values) != 3 {
		return errors.New("fence.check and fence.identity did not return one row of three values")
	}
	var high, low uint32
	if _, err := fmt.Sscanf(string(values.Values[2]), "%X/%X", &high, &low); err != nil {
		return fmt.Errorf("parse %q of fence.identity: %w", values.Values[2], err)
	}
	if err := judge(string(values.Values[1]), uint64(high)<<32|uint64(low)); err != nil {
		return unjudged(err)
	}
	token, err := fence.ParseToken(string(values.Values[0]))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && len(s.claims) == 1 && s.claims[0].token == 0 {
		s.claims[0].token = token
	}
	return nil
}

// checkRefusal turns the fence's error into the FATAL error of the session.
func (s *session) checkRefusal(body []byte) error {
	var e pgproto3.ErrorResponse
	if err := e.Decode(body); err != nil {
		return err
	}
	refusal := &fatalError{code: e.Code, message: e.Message, detail: e.Detail, hint: e.Hint}
	switch e.Code {
	case codeInsufficientPrivilege:
		refusal.message = "the role " + quote(s.who.user) + " may not present a grant: " + e.Message
		refusal.hint = "As the database's owner: GRANT fence_writer TO the role."
	case codeUndefinedFunction, codeUndefinedSchema:
		refusal.message = "the database has no fence to check the grant: " + e.Message
		refusal.hint = "Run: fencegate migrate up"
	}
	return refusal
}

// maxAnswerBytes bounds one message in the answer to sqlCheck.
const maxAnswerBytes = 64 << 10

// readMessage reads exactly one message.
func readMessage(r io.Reader) (typ byte, body []byte, err error) {
	var head [headerBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n > maxAnswerBytes {
		return 0, nil, fmt.Errorf("PostgreSQL sent a message %q of %d bytes", head[0], n)
	}
	body = make([]byte, n-4)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}

func framed(typ byte, body []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{typ}, uint32(len(body)+4))
	return append(b, body...)
}

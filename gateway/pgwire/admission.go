package pgwire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/fence"
)

// sqlCheck lets the fence check the grant that the session presents, and returns the server's identity.
const sqlCheck = "SELECT fence.check(), identity, written FROM fence.identity()"

// admission decides whether a client that has logged in receives its first ReadyForQuery.
type admission struct {
	client   *client
	upstream net.Conn
	session  *session
	policy   Policy
	place    *place
	events   *events
	counters *counters
	judge    func(context.Context) (func(identity string, written uint64) error, error) // as in [Config]
	timeout  time.Duration                                                              // of judge
}

// admit decides. ready is the beginning of the client's first ReadyForQuery, or all of it; so is the result.
func (a *admission) admit(ready []byte) ([]byte, error) {
	ready, err := a.decide(ready)
	if refusal, ok := asFatalError(err); ok {
		a.counters.refuse(refusal)
		a.events.refused(refusal.code, refusal.detail)
		a.client.log().Warn("a session was refused", "sqlstate", refusal.code, "error", refusal)
		a.session.cut(refusal)
		return nil, errEnded
	}
	return ready, err
}

func (a *admission) decide(ready []byte) ([]byte, error) {
	who := a.client.who
	if !a.place.logIn(truncate(who.user)) {
		return nil, &fatalError{
			code: codeTooManyConnections, message: "too many connections for role " + quote(who.user),
			hint: "The gateway's limit of connections for one user is reached. Try again when others have ended.",
		}
	}
	switch {
	case a.policy == PolicyOpen, a.policy == PolicyReadOnly && !who.presents:
		return ready, nil
	case !who.presents || who.physical:
		return nil, noGrant(who)
	}
	return a.check(ready)
}

func noGrant(who startup) error {
	code, _ := fence.CodeOf(fence.ErrNoGrant)
	return &fatalError{
		code: code.SQLState, message: "a session of role " + quote(who.user) + " needs a grant here",
		detail: jsonOf(struct {
			User     string `json:"user"`
			Database string `json:"database"`
		}{printableName(who.user), printableName(who.database)}),
		hint: code.Hint + " It comes with the connection: options=-c fence.resource=… -c fence.token=….",
	}
}

// check lets the fence check the presented grant in the session itself, as each guarded write will. It returns the
// ReadyForQuery that follows.
func (a *admission) check(ready []byte) ([]byte, error) {
	judge, refusal := a.findJudge()
	if refusal != nil {
		return nil, refusal
	}
	from := io.MultiReader(bytes.NewReader(ready), a.upstream)
	for asked := false; ; {
		typ, body, err := readMessage(from)
		switch {
		case err != nil && a.session.ending():
			return nil, errEnded
		case err != nil:
			return nil, err
		}
		switch {
		case typ == typeReadyForQuery && !asked:
			asked = true
			query, _ := (&pgproto3.Query{String: sqlCheck}).Encode(nil) // short
			if _, err := a.upstream.Write(query); err != nil {
				return nil, err
			}
		case typ == typeReadyForQuery:
			return encodeMessage(typ, body), refusal
		case typ == typeError:
			refusal = a.refusalOf(body)
		case typ == typeDataRow:
			refusal = a.learn(body, judge)
		case typ == typeParameterStatus, typ == typeNotice:
			if _, err := a.client.conn.Write(encodeMessage(typ, body)); err != nil {
				return nil, errClientGone
			}
		}
	}
}

// findJudge returns the function that reports whether the session's server can judge grants.
func (a *admission) findJudge() (func(identity string, written uint64) error, error) {
	if a.judge == nil {
		return func(string, uint64) error { return nil }, nil
	}
	ctx, cancel := context.WithTimeout(a.session.opening, a.timeout)
	defer cancel()
	judge, err := a.judge(ctx)
	if err != nil {
		return nil, cannotCheck(err)
	}
	return judge, nil
}

// cannotCheck refuses a grant because no server can judge it now.
func cannotCheck(err error) error {
	why := "PostgreSQL's identity is not verified"
	if known, ok := errors.AsType[interface {
		error
		Tell() string
	}](err); ok {
		why = known.Tell()
	}
	return &fatalError{
		code: codeCannotConnectNow, message: "grants can't be checked now: " + why, hint: "Nothing was done. Try again later; the gateway's log says more.", cause: err,
	}
}

// learn takes the token of a grant that was presented without it from the result of sqlCheck.
func (a *admission) learn(row []byte, judge func(identity string, written uint64) error) error {
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
		return cannotCheck(err)
	}
	if token, err := fence.ParseToken(string(values.Values[0])); err == nil {
		a.session.learn(token)
	}
	return nil
}

// refusalOf turns the fence's error into the FATAL error of the session.
func (a *admission) refusalOf(body []byte) error {
	var e pgproto3.ErrorResponse
	if err := e.Decode(body); err != nil {
		return err
	}
	refusal := &fatalError{code: e.Code, message: e.Message, detail: e.Detail, hint: e.Hint}
	switch e.Code {
	case codeInsufficientPrivilege:
		refusal.message = "the role " + quote(a.client.who.user) + " may not present a grant: " + e.Message
		refusal.hint = "As the database's owner: GRANT fence_writer TO the role."
	case codeUndefinedFunction, codeUndefinedSchema:
		refusal.message = "the database has no fence to check the grant: " + e.Message
		refusal.hint = "Run: fencegate migrate up"
	}
	return refusal
}

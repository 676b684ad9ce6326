package pgwire

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// SQLSTATEs that the relay itself sends.
const (
	codeConnectionFailure     = "08006"
	codeIdleInTransaction     = "25P03"
	codeUndefinedSchema       = "3F000"
	codeInsufficientPrivilege = "42501"
	codeUndefinedParameter    = "42704"
	codeUndefinedFunction     = "42883"
	codeIdleSession           = "57P05"
	codeProtocolViolation     = "08P01"
	codeUnsupported           = "0A000"
	codeInvalidAuthorization  = "28000"
	codeUnknownDatabase       = "3D000"
	codeTooManyConnections    = "53300"
	codeAdminShutdown         = "57P01"
	codeCannotConnectNow      = "57P03"
)

// fatalError is the FATAL error with which a connection is refused or a session ended.
type fatalError struct {
	code    string
	message string
	detail  string
	hint    string
	cause   error // for the log; may contain addresses
}

func (e *fatalError) Error() string {
	if e.cause != nil {
		return e.message + ": " + e.cause.Error()
	}
	return e.message
}

func (e *fatalError) Unwrap() error { return e.cause }

var _ slog.LogValuer = (*fatalError)(nil)

// LogValue keeps the text, with its cause, in one attribute.
func (e *fatalError) LogValue() slog.Value { return slog.StringValue(e.Error()) }

// mayBeCommitted is the hint for clients that wait for an answer.
const mayBeCommitted = "A COMMIT that was not acknowledged may or may not have taken effect."

// withHint returns the error with one more sentence in its hint.
func (e *fatalError) withHint(more string) *fatalError {
	with := *e
	with.hint = strings.TrimSpace(e.hint + " " + more)
	return &with
}

// errShuttingDown is the error for a client that connects too late.
var errShuttingDown = &fatalError{code: codeCannotConnectNow, message: "the gateway is shutting down"}

// staleError is the error for a session with a superseded grant; its DETAIL has the form of the fence in PostgreSQL.
func staleError(stale *fence.StaleError) *fatalError {
	code, _ := fence.CodeOf(stale)
	detail := jsonOf(struct {
		Resource  string      `json:"resource"`
		Presented fence.Token `json:"presented"`
		Recorded  fence.Token `json:"recorded"`
	}{stale.Resource, stale.Presented, stale.Recorded})
	return &fatalError{code: code.SQLState, message: stale.Error(), detail: detail, hint: code.Hint}
}

// jsonOf returns a DETAIL.
func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // strings and numbers cannot fail
	}
	return string(b)
}

func asFatalError(err error) (*fatalError, bool) { return errors.AsType[*fatalError](err) }

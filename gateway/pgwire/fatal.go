package pgwire

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
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

const (
	farewellTimeout = 2 * time.Second        // for the last bytes to a peer
	writeGrace      = 200 * time.Millisecond // for a write in progress to a client whose session is cut
	longLinger      = 2 * time.Second        // for a client that still sends after a refusal
	shortLinger     = 200 * time.Millisecond // for a client that is probably silent
	lingerBytes     = 256 << 10
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

// advised returns the error with one more sentence in its hint.
func (e *fatalError) advised(more string) *fatalError {
	with := *e
	with.hint = strings.TrimSpace(e.hint + " " + more)
	return &with
}

// jsonOf returns a DETAIL.
func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // strings and numbers cannot fail
	}
	return string(b)
}

// maxPrintable bounds a name in a DETAIL, in bytes.
const maxPrintable = 100

// printable returns a name without control characters and invalid UTF-8.
func printable(name string) string {
	quoted := strconv.QuoteToASCII(truncated(name))
	return quoted[1:min(len(quoted)-1, maxPrintable)]
}

func asFatalError(err error) (*fatalError, bool) { return errors.AsType[*fatalError](err) }

// sendFatal sends a client the error that ends its session. The caller ensures that the stream is between two messages,
// and closes the connection afterwards.
func sendFatal(client net.Conn, why *fatalError) {
	e := pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL",
		Code: why.code, Message: why.message, Detail: why.detail, Hint: why.hint,
	}
	b, err := e.Encode(nil)
	if err != nil {
		return // only a message of over 1 GB fails
	}
	_ = client.SetWriteDeadline(time.Now().Add(farewellTimeout))
	_, _ = client.Write(b)
}

// linger closes our half and reads what the client was sending, for a bounded time: closing a socket with unread bytes
// resets it, and the client could lose the FATAL that was just sent.
func linger(client net.Conn, longest time.Duration) {
	if closeWrite(client) != nil {
		return
	}
	_ = client.SetReadDeadline(time.Now().Add(longest))
	_, _ = io.CopyN(io.Discard, client, lingerBytes)
}

// closeWrite closes our half of a connection; TCP, Unix sockets and TLS support that.
func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}

// terminate is the message Terminate.
var terminate = []byte{'X', 0, 0, 0, 4}

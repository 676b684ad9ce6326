package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/wire"
)

// Exit codes. Refusals by a fence use those of fence.Codes. The numbers follow sysexits.h where it has one. They are
// documented in docs/cli.md.
const (
	exitOK          = 0
	exitFailed      = 1  // any other failure
	exitUsage       = 64 // malformed command line, flag, variable or input
	exitUnavailable = 69 // the gateway, PostgreSQL, or a quorum of Redis is unavailable
	exitHeld        = 75 // another holds the resource; try again later
	exitForbidden   = 77 // refused: not authorized, or the fence's ZF002 to ZF004
	exitLost        = 79 // the lease was lost before the command ended
	exitInterrupted = 130
	exitNoReader    = 141 // standard output has lost its reader; as SIGPIPE ends a process
)

// exitError carries an exit code and a hint to main.
type exitError struct {
	code int
	hint string
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }

func (e *exitError) Unwrap() error { return e.err }

// printedError is an error that was already printed as JSON.
type printedError struct{ error }

func (e *printedError) Unwrap() error { return e.error }

// childExit passes on the exit code of the command that `run` ran. Nothing is printed.
type childExit struct{ code int }

func (e *childExit) Error() string { return fmt.Sprintf("the command ended with %d", e.code) }

// interruptedError is the error of a command that a signal ended.
type interruptedError struct{}

func (interruptedError) Error() string { return "interrupted" }

func (interruptedError) Unwrap() error { return context.Canceled }

// seeHelp stands for a hint at the command's help.
const seeHelp = "see --help"

func usage(err error) error {
	return &exitError{code: exitUsage, hint: seeHelp, err: err}
}

func withHint(err error, code int, hint string) error {
	return &exitError{code: code, hint: hint, err: err}
}

// endedBy replaces an error that follows from the interrupt that ended ctx.
func endedBy(ctx context.Context, err error) error {
	var explicit *exitError
	var printed *printedError
	var passed *childExit
	if err == nil || ctx.Err() == nil || errors.As(err, &explicit) || errors.As(err, &printed) || errors.As(err, &passed) {
		return err
	}
	return interruptedError{}
}

// report prints one line with the command's error, and one with a hint if there is one.
func report(w io.Writer, command string, err error) int {
	if err == nil {
		return exitOK
	}
	if passed, ok := errors.AsType[*childExit](err); ok {
		return passed.code
	}
	code, hint := classify(err)
	if code == exitNoReader || errors.As(err, new(*printedError)) {
		return code
	}
	text := oneLine(pgtext.Of(err))
	if code == exitInterrupted {
		text = "interrupted"
	}
	if _, malformed := errors.AsType[*pgconn.ParseConfigError](err); malformed {
		text = "the database's address is not a PostgreSQL address" // err contains the address, sometimes with its password
	}
	_, _ = fmt.Fprintf(w, "fencegate: %s\n", text)
	if hint == seeHelp {
		hint = "see " + command + " --help"
	}
	if hint != "" && !strings.Contains(text, oneLine(hint)) {
		_, _ = fmt.Fprintf(w, "hint: %s\n", oneLine(hint))
	}
	return code
}

func classify(err error) (code int, hint string) {
	if explicit, ok := errors.AsType[*exitError](err); ok {
		return explicit.code, explicit.hint
	}
	switch {
	case errors.Is(err, objects.ErrNoBucket):
		return exitFailed, "see fencegate buckets ls"
	case errors.Is(err, objects.ErrNoVersion):
		return exitFailed, "see fencegate objects versions BUCKET KEY"
	}
	if problem, ok := errors.AsType[*client.Problem](err); ok {
		return problemExit(problem), hintOf(problem)
	}
	if c, ok := fence.CodeOf(err); ok {
		return c.ExitCode, c.Hint
	}
	if code, hint := classifyPostgreSQL(err); code != 0 {
		return code, hint
	}
	var unreachable *client.UnreachableError
	switch {
	case stdoutHasNoReader(err):
		return exitNoReader, ""
	case errors.Is(err, context.Canceled):
		return exitInterrupted, ""
	case errors.As(err, &unreachable) && errors.Is(err, http.ErrSchemeMismatch):
		return exitUnavailable, "the gateway at this address speaks plain HTTP: name it with http://"
	case errors.As(err, &unreachable) && untrusted(err) != "":
		return exitUnavailable, untrusted(err)
	case errors.As(err, &unreachable) && speaksNoHTTP(err):
		return exitUnavailable, "something else listens there: name the port of the gateway's HTTP API, 7070 by default"
	case errors.Is(err, syscall.EADDRINUSE):
		return exitFailed, "another process listens there; name other addresses with --api-listen, --pg-listen, --s3-listen and --metrics-listen"
	case errors.As(err, &unreachable) && mayBeDone(unreachable):
		return exitUnavailable, "the gateway may have done it: check before you repeat it"
	case errors.As(err, &unreachable) && errors.Is(err, context.DeadlineExceeded):
		return exitUnavailable, "the gateway, or PostgreSQL behind it, is slow or hangs: fencegate health --ready tells which"
	case errors.As(err, &unreachable):
		return exitUnavailable, "start one with `fencegate dev`, or name yours with --gateway or FENCEGATE_GATEWAY"
	case errors.Is(err, fence.ErrInvalid):
		return exitUsage, ""
	}
	return exitFailed, ""
}

func exitOf(err error) int {
	code, _ := classify(err)
	return code
}

// hintOf returns a problem's hint in terms of the command line.
func hintOf(p *client.Problem) string {
	switch p.Code {
	case wire.CodeHeld:
		return "`fencegate lease show` tells who holds it; --wait waits for it"
	case wire.CodeUnauthorized:
		return "give the gateway's bearer token in FENCEGATE_TOKEN or with --token-file"
	}
	return p.Hint()
}

// mayBeDone reports whether a mutating request may have reached the gateway although no answer arrived.
func mayBeDone(e *client.UnreachableError) bool {
	if request, ok := errors.AsType[*url.Error](e); ok && request.Op == "Get" {
		return false
	}
	if dial, ok := errors.AsType[*net.OpError](e); ok && dial.Op == "dial" {
		return false
	}
	_, plain := errors.AsType[tls.RecordHeaderError](e)
	return untrusted(e) == "" && !plain && !errors.Is(e, http.ErrSchemeMismatch)
}

// untrusted returns the hint if the gateway's certificate could not be verified; else "".
func untrusted(err error) string {
	if _, is := errors.AsType[*tls.CertificateVerificationError](err); !is {
		return ""
	}
	if _, is := errors.AsType[x509.HostnameError](err); is {
		return "name the gateway at --gateway or FENCEGATE_GATEWAY as its certificate does"
	}
	if invalid, is := errors.AsType[x509.CertificateInvalidError](err); is && invalid.Reason == x509.Expired {
		return "renew the gateway's certificate, or correct this machine's clock"
	}
	return "name the file with the authority of the gateway's certificate with --ca or FENCEGATE_CA"
}

// unknownIfBroken wraps an error that ended the PostgreSQL connection, or that is not one of its answers: whether the statement
// took effect is unknown.
func unknownIfBroken(err error) error {
	if err == nil {
		return nil
	}
	refused, answered := errors.AsType[*pgconn.PgError](err)
	_, away := errors.AsType[*pgconn.ConnectError](err)
	if away || answered && refused.SeverityUnlocalized == "ERROR" {
		return err
	}
	return fmt.Errorf("%w: %w", fence.ErrUnknown, err)
}

// classifyPostgreSQL classifies errors of a connection that the command itself makes. code 0 means that it is none.
func classifyPostgreSQL(err error) (code int, hint string) {
	const check = "check --postgres-url or FENCEGATE_POSTGRES_URL"
	var malformed *pgconn.ParseConfigError
	var connect *pgconn.ConnectError
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &malformed):
		return exitUsage, check + "; it reads postgres://user@host:port/database, with the password in PGPASSWORD or percent-encoded behind the user"
	case errors.Is(err, fence.ErrUnknown) && !errors.As(err, new(*client.UnreachableError)): // whatever a later try got
		return exitUnavailable, "PostgreSQL may have done it: check before you repeat it"
	case errors.As(err, &refused) && strings.HasPrefix(refused.Code, "28"): // invalid authorization
		return exitForbidden, check
	case refused != nil && refused.Code == "42501": // insufficient_privilege, possibly already to connect
		return exitForbidden, cmp.Or(refused.Hint, "use the login that the command's --help names at --postgres-url")
	case errors.As(err, &connect):
		return exitUnavailable, check
	case refused == nil:
		return 0, ""
	case refused.Code == "22023": // invalid_parameter_value: an argument of the command
		return exitUsage, refused.Hint
	case refused.Code == "25006": // read_only_sql_transaction
		return exitFailed, "the server is a standby, or default_transaction_read_only is on: name the primary"
	case notMigrated(refused):
		return exitFailed, "the database may not be migrated, or be another one: fencegate migrate status"
	case refused.Hint != "":
		return exitFailed, refused.Hint
	}
	return 0, ""
}

// notMigrated reports whether the object that PostgreSQL does not find belongs to fencegate.
func notMigrated(err *pgconn.PgError) bool {
	switch err.Code {
	case "42P01", "42883", "3F000": // undefined table, function, schema
	default:
		return false
	}
	for _, own := range []string{`"fence"`, `"objects"`, `"fence.`, `"objects.`, "function fence.", "function objects."} {
		if strings.Contains(err.Message, own) {
			return true
		}
	}
	return false
}

func problemExit(p *client.Problem) int {
	for _, c := range fence.Codes {
		if c.SQLState == p.Code {
			return c.ExitCode
		}
	}
	switch p.Code {
	case wire.CodeInvalid:
		if p.Field == "handle" { // another gateway's, or damaged: its signature is not valid here
			return exitForbidden
		}
		return exitUsage
	case wire.CodeHeld:
		return exitHeld
	case wire.CodeUnavailable, wire.CodeRateLimited:
		return exitUnavailable
	case wire.CodeLeaseLost:
		return exitLost
	case wire.CodeUnauthorized, wire.CodeDenied:
		return exitForbidden
	}
	return exitFailed
}

// speaksNoHTTP reports whether something other than an HTTP server answered. These errors of net/http have no type: the first
// is of an answer, the second of a server that speaks before it is asked, as SSH does.
func speaksNoHTTP(err error) bool {
	return strings.Contains(err.Error(), "malformed HTTP") || strings.Contains(err.Error(), "readLoopPeekFailLocked: %!w(<nil>)")
}

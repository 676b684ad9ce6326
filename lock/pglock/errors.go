package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/pgtext"
)

// unavailable says why PostgreSQL gives no lease.
func unavailable(doing string, err error) error {
	return &leasing.UnavailableError{Part: leasing.PartPostgres, Cause: &failedError{doing, err}}
}

// failedError is PostgreSQL's error, with the remedy for one that does not pass by itself.
type failedError struct {
	doing string
	err   error
}

func (e *failedError) Error() string {
	text := e.doing + ": " + pgtext.Of(e.err)
	if advice := advice(e.err); advice != "" {
		text += "; " + advice
	}
	return text
}

func (e *failedError) Unwrap() error { return e.err }

// SourceError reports that the database gives no lease until an operator decides: its leases come from another source,
// or it may have forgotten fences.
type SourceError struct{ Reason, Advice string }

func (e *SourceError) Error() string { return e.Reason + ". " + e.Advice }

// Tell returns the text for clients.
func (e *SourceError) Tell() string { return e.Error() }

// SQLSTATEs of fence.need_source.
const (
	stateOtherSource = "ZF101"
	stateForgotten   = "ZF102"
)

const (
	// stateBusy is lock_not_available: another transaction has locked a row for longer than the functions wait.
	stateBusy = "55P03"
	// stateReadOnly is read_only_sql_transaction.
	stateReadOnly = "25006"
)

// errBusy: another transaction holds the resource's turn for longer than a release waits.
var errBusy = errors.New("another transaction is changing the resource's fence; try again")

// failure classifies a PostgreSQL error: the context's own, a refusal of the fence, or a [*leasing.UnavailableError].
func failure(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	if translated := pgfence.Translate(err); isRefusal(translated) {
		return fmt.Errorf("%s: %w", doing, translated)
	}
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && (refused.Code == stateOtherSource || refused.Code == stateForgotten) {
		err = &SourceError{Reason: refused.Message, Advice: refused.Hint}
	}
	return unavailable(doing, err)
}

func isRefusal(err error) bool {
	_, ok := fence.CodeOf(err)
	return ok
}

// advice returns the remedy for an error that does not pass by itself: ours, or the server's hint.
func advice(err error) string {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return ""
	case refused.Code == "42501": // insufficient_privilege
		return "grant the login fence_locker, or fence_gateway"
	case refused.Code == "42883", refused.Code == "3F000", refused.Code == "42P01": // no function, no schema, no table
		return "the schema is older than this program: fencegate migrate up"
	case refused.Code == stateBusy:
		return "another transaction blocks the lease; try again"
	case readOnly(refused):
		return "connect with default_transaction_read_only = off, and to the primary"
	}
	return refused.Hint
}

// readOnly reports whether PostgreSQL itself refused a statement, because the login's transactions are read-only by
// default, or on a standby, for which fence.need_source has a better text where a function asks it.
func readOnly(refused *pgconn.PgError) bool {
	return refused.Code == stateReadOnly && refused.Routine == "PreventCommandIfReadOnly"
}

// lost reports whether the connection broke, so that the outcome of the statement is unknown.
func lost(err error) bool {
	if err == nil || errors.Is(err, leasing.ErrHeld) || errors.Is(err, leasing.ErrLost) {
		return false // the last two are answers of the server
	}
	if _, connecting := errors.AsType[*pgconn.ConnectError](err); connecting {
		return false
	}
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return !ok || refused.SeverityUnlocalized != "ERROR"
}

// mayPass reports whether waiting helps: the server restarts, or another one takes over.
func mayPass(err error) bool {
	failed, ok := errors.AsType[*failedError](err)
	if !ok || errors.As(err, new(*SourceError)) || errors.Is(err, pgfence.ErrNoticesUnavailable) {
		return false
	}
	refused, ok := errors.AsType[*pgconn.PgError](failed.err)
	switch {
	case !ok:
		return true
	case refused.Code == stateReadOnly:
		return !readOnly(refused)
	case strings.HasPrefix(refused.Code, "08"): // PgBouncer's code for whatever it refuses
		return !strings.HasPrefix(refused.Message, "unsupported startup parameter")
	}
	return refused.Code == stateBusy || strings.HasPrefix(refused.Code, "57P") || strings.HasPrefix(refused.Code, "53")
}

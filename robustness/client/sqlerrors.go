package client

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
)

// sqlFailure classifies a connection's error for the transaction: by PostgreSQL's rules an
// ERROR rolls it back, and nothing is committed before COMMIT is sent. committing means that
// COMMIT, or a statement that commits by itself, was sent. pgconn.SafeToRetry does not suffice:
// pgx 5.12.0 also returns it for a simple query that was sent and whose answer was lost.
func sqlFailure(err error, committing bool) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	f := &failure{outcome: history.Failed, err: err}
	answer, answered := errors.AsType[*pgconn.PgError](err)
	if answered {
		f.code = answer.Code
	}
	switch {
	case committing && (!answered || fatal(answer)):
		f.outcome = history.Unknown
	case strings.HasPrefix(f.code, "ZF"):
		f.outcome = history.Refused
	}
	return f
}

// fatal reports that the answer ends the connection. It does not decide the statement before it.
func fatal(answer *pgconn.PgError) bool {
	severity := answer.SeverityUnlocalized
	if severity == "" {
		severity = answer.Severity
	}
	return severity != "ERROR"
}

// inTxFailure classifies an error of pgfence.InTx, by its documentation.
func inTxFailure(err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*failure](err); ok && !errors.Is(err, fence.ErrUnknown) {
		return f
	}
	f := &failure{outcome: history.Failed, err: err}
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		f.code = answer.Code
	}
	if code, ok := fence.CodeOf(err); ok {
		f.outcome, f.code = history.Refused, code.SQLState
	}
	if errors.Is(err, fence.ErrUnknown) {
		f.outcome = history.Unknown
	}
	return f
}

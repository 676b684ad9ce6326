package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/quota"
	"github.com/fencegate/fencegate/wire"
)

const (
	maxStatements = 100
	// runTimeout bounds the wait until fewer requests of the principal run.
	runTimeout = time.Minute
)

var errNoSQL = fmt.Errorf("%w: this gateway has no login for SQL", ErrNotImplemented)

// sqlCalls are the calls that run SQL under a grant.
type sqlCalls struct {
	sql     SQL // nil: there is no login for it
	leases  Leases
	journal *journal
	log     *slog.Logger

	each    int // how many requests of one principal run at once, so that none takes all connections; 0: no limit
	running quota.Quota[string]
}

func (s *sqlCalls) execute(c echo.Context) error {
	var body wire.SQLRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	switch n := len(body.Statements); {
	case s.sql == nil:
		return errNoSQL
	case n == 0:
		return &fence.InvalidError{Field: "statements", Reason: "are empty"}
	case n > maxStatements:
		return &fence.InvalidError{Field: "statements", Reason: fmt.Sprintf("are %d; at most %d are allowed", n, maxStatements)}
	}
	grant, err := fence.FromHeader(c.Request().Header)
	if err != nil {
		return err
	}
	if err := checkRight(c, access.SQL, grant.Resource); err != nil {
		return err
	}
	results, err := s.run(c.Request().Context(), grant, body.Statements)
	if err != nil {
		s.journal.refusal(c.Request(), err, aboutSQL(body.Statements, err))
		return err
	}
	return respond(c, http.StatusOK, wire.SQLAnswer{Results: results})
}

// run waits until fewer requests of the caller than its limit run, then runs SQL.
func (s *sqlCalls) run(ctx context.Context, grant fence.Grant, statements []wire.Statement) ([]wire.Result, error) {
	name := access.Of(ctx).Name()
	waiting, cancel := context.WithTimeoutCause(ctx, runTimeout, &leasing.UnavailableError{
		Part: wire.PartGateway, Cause: fmt.Errorf("%d SQL requests of %s are running, its limit, and none ended within %v", s.each, name, runTimeout),
	})
	defer cancel()
	leave, err := s.running.Wait(waiting, name, s.each)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.sql.Run(ctx, grant, statements)
}

// kinds are the SQL commands that an event may name.
var kinds = []string{"INSERT", "UPDATE", "DELETE", "TRUNCATE", "MERGE", "SELECT", "WITH", "CALL", "DO"}

// kindOf returns the command with which a statement begins; else "".
func kindOf(sql string) string {
	for word := range strings.FieldsSeq(sql) {
		if word = strings.ToUpper(word); slices.Contains(kinds, word) {
			return word
		}
		break
	}
	return ""
}

// aboutSQL returns what an event says of a refused request: the statement that was refused, or the first one.
func aboutSQL(statements []wire.Statement, err error) activity.Event {
	about := activity.Event{Surface: wire.SurfaceSQL, Statement: kindOf(statements[0].SQL)}
	if st, ok := errors.AsType[*StatementError](err); ok {
		about.Statement, about.Table = st.Operation, st.Table
	}
	return about
}

// rightToCheck is the right that a check of a grant needs. A check with a seal changes nothing. A bare token raises the
// fence if it is the highest, as a statement under it does.
func rightToCheck(grant fence.Grant) access.Verb {
	if grant.Seal.IsZero() {
		return access.SQL
	}
	return access.Acquire
}

// check reports whether the fence accepts a grant now, for side effects outside a transaction. It asks the fence
// as a writer does, in a transaction that writes nothing. The answer also says whether the resource is locked: the
// fence accepts the grant of an expired lease until the next holder is armed.
func (s *sqlCalls) check(c echo.Context) error {
	if s.sql == nil {
		return errNoSQL
	}
	grant, err := fence.FromHeader(c.Request().Header)
	if err != nil {
		return err
	}
	if err := checkRight(c, rightToCheck(grant), grant.Resource); err != nil {
		return err
	}
	ctx := c.Request().Context()
	var (
		asked sync.WaitGroup
		state lockAnswer
	)
	if !grant.Seal.IsZero() {
		asked.Go(func() { state = askLock(ctx, s.leases, grant.Resource) })
	}
	_, err = s.run(ctx, grant, nil)
	asked.Wait()
	if err != nil {
		s.journal.refusal(c.Request(), err, activity.Event{Surface: wire.SurfaceCheck})
		return err
	}
	answer := wire.Checked{Resource: grant.Resource, Token: grant.Token}
	switch {
	case grant.Seal.IsZero(): // the token of a lock that this gateway does not know
	case state.err != nil:
		s.log.WarnContext(ctx, "failed to learn whether a resource is locked", "resource", grant.Resource, "error", leaseError(ctx, state.err))
	default:
		answer.Locked = &state.Locked
	}
	return respond(c, http.StatusOK, answer)
}

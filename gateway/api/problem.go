package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// lostHint is the hint for a client that has lost a lease.
const lostHint = "Stop; acquire the resource again and start from what its last holder wrote."

// foreignHint is the hint for a client whose handle no master key of the gateway has signed.
const foreignHint = "Nothing was done. fencegate doctor with the URLs of all gateways compares their master keys."

// sentinels are the problems of errors without facts. If the detail is empty, the error's text is used.
var sentinels = []struct {
	err                       error
	code, title, detail, hint string
}{
	{ErrKeyUsed, wire.CodeLeaseLost, "The lease is over", ErrKeyUsed.Error(), "Nothing was acquired. Ask with a new Idempotency-Key."},
	{errOtherRequest, wire.CodeKeyReused, "The key belongs to another request", errOtherRequest.Error(), "Nothing was done. Make a key for each acquisition."},
	{leasing.ErrLost, wire.CodeLeaseLost, "The lease is lost", leasing.ErrLost.Error(), lostHint},
	{errUnauthorized, wire.CodeUnauthorized, "Unauthorized", errUnauthorized.Error(), "Send the header Authorization: Bearer with your token."},
	{errTwoPrincipals, wire.CodeUnauthorized, "Unauthorized", errTwoPrincipals.Error(), "Send one of them, or both of one principal."},
	{ErrNotFound, wire.CodeNotFound, "Not found", "", ""},
	{ErrConflict, wire.CodeConflict, "Conflict", "", ""},
	{ErrNotImplemented, wire.CodeNotImplemented, "Not implemented", "", ""},
}

// problemOf turns an error into the client's answer. known is false for errors whose text is not for clients; they are
// logged.
func problemOf(err error) (p wire.Problem, known bool) {
	if p, known = factualProblem(err); known {
		return p, true
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return word(s.code, s.title, cmp.Or(s.detail, err.Error()), s.hint), true
		}
	}
	return word(wire.CodeInternal, "Internal error", "The gateway failed; its log says more.", ""), false
}

// factualProblem is the problem of an error with facts for the client.
func factualProblem(err error) (p wire.Problem, is bool) {
	var (
		invalid     *fence.InvalidError
		held        *leasing.HeldError
		unavailable *leasing.UnavailableError
		tooLarge    *TooLargeError
		statement   *StatementError
		routing     *echo.HTTPError
		denied      *access.DeniedError
		fast        *RateError
		capped      *cappedError
		lost        *lossError
	)
	switch {
	case errors.As(err, &denied): // the outcome of a wait that it ended may be unknown
		p = deniedProblem(denied, errors.Is(err, fence.ErrUnknown))
	case errors.As(err, &unavailable):
		p = unavailableProblem(unavailable, err)
	case errors.Is(err, fence.ErrUnknown):
		p = word(wire.CodeUnknown, "The outcome is unknown",
			"The connection broke after COMMIT was sent: all of it has taken effect, or none of it.",
			"Read what the statements would have changed, under a current grant, before you run them again.")
	case errors.As(err, &statement):
		p = statementProblem(statement)
	case isRefusal(err):
		p = refusalProblem(err)
	case errors.As(err, &invalid):
		p = word(wire.CodeInvalid, "Invalid input", invalid.Error(), "")
		p.Field = invalid.Field
		if invalid == errForeign {
			p.Hint = foreignHint
		}
	case errors.As(err, &held):
		p = word(wire.CodeHeld, "Held by another", held.Error(), "Try again, or send a wait.")
		p.Resource, p.Holder, p.RetryAfterMS = held.Resource, held.Holder, held.RetryAfter.Milliseconds()
	case errors.As(err, &tooLarge):
		p = word(wire.CodeTooLarge, "Too large", tooLarge.Error(), "Nothing was done. Split the work.")
	case errors.As(err, &capped):
		p = word(wire.CodeLeaseLost, "The lease is lost", capped.Error(),
			"Acquire the resource again. The gateway's operator sets how long a lease may be renewed (--max-lease).")
	case errors.As(err, &lost):
		p = word(wire.CodeLeaseLost, "The lease is lost", lost.Error(), lostHint)
		p.Recorded = token(lost.recorded)
	case errors.As(err, &fast):
		p = word(wire.CodeRateLimited, "Too many requests", fast.Error(), "Nothing was done. Send fewer requests, or have the limit raised (--api-rate).")
		p.RetryAfterMS = fast.RetryAfter.Milliseconds() + 1
	case errors.As(err, &routing):
		p = routingProblem(routing)
	default:
		return p, false
	}
	return p, true
}

func deniedProblem(denied *access.DeniedError, unknown bool) wire.Problem {
	done := "Nothing was done."
	if unknown {
		done = "Whether the lease was acquired is unknown; if it was, it ends at its TTL."
	}
	p := word(wire.CodeDenied, "Denied", denied.Error(), done+" The gateway's operator decides who may do what, in the file of --principals.")
	p.Resource = denied.Resource
	return p
}

func isRefusal(err error) bool {
	_, ok := fence.CodeOf(err)
	return ok
}

// refusalProblem is the problem of a refusal by the fence, with the facts of the error.
func refusalProblem(err error) wire.Problem {
	code, _ := fence.CodeOf(err)
	p := wire.Problem{Type: wire.ProblemType + code.Problem, Status: code.HTTPStatus, Code: code.SQLState, Hint: code.Hint, Detail: code.Err.Error()}
	p.Title = strings.ToUpper(p.Detail[:1]) + p.Detail[1:]
	var (
		stale       *fence.StaleError
		noGrant     *fence.NoGrantError
		neverIssued *fence.NeverIssuedError
		wrong       *fence.WrongResourceError
		undrained   *fence.UndrainedError
	)
	switch {
	case errors.As(err, &stale):
		p.Detail, p.Resource, p.Presented, p.Recorded = stale.Error(), stale.Resource, token(stale.Presented), token(stale.Recorded)
	case errors.As(err, &noGrant):
		p.Detail, p.Needed = noGrant.Error(), noGrant.Needed
	case errors.As(err, &neverIssued):
		p.Detail, p.Resource, p.Presented, p.Recorded = neverIssued.Error(), neverIssued.Resource, token(neverIssued.Presented), token(neverIssued.Recorded)
	case errors.As(err, &wrong):
		p.Detail, p.Resource, p.Needed = wrong.Error(), wrong.Resource, wrong.Needed
	case errors.As(err, &undrained):
		p.Detail, p.Resource = undrained.Error(), undrained.Resource
	}
	return p
}

// token omits 0, which stands for "not known": [fence.ParseToken] refuses it.
func token(t fence.Token) *fence.Token {
	if t == 0 {
		return nil
	}
	return &t
}

func statementProblem(e *StatementError) wire.Problem {
	var index *int
	if e.Index >= 0 {
		index = &e.Index
	}
	if e.Cause != nil && isRefusal(e.Cause) {
		p := refusalProblem(e.Cause)
		p.Statement = index
		return p
	}
	p := word(wire.CodeSQLError, "SQL error", e.Message, e.Hint)
	p.SQLState, p.SQLDetail, p.Position, p.Statement = e.SQLState, e.Detail, e.Position, index
	return p
}

func routingProblem(e *echo.HTTPError) wire.Problem {
	switch e.Code {
	case http.StatusNotFound:
		return word(wire.CodeNotFound, "Not found", "There is no such path.", "See /openapi.json.")
	case http.StatusMethodNotAllowed:
		return word(wire.CodeMethodNotAllowed, "Method not allowed", "The path does not serve this method.", "See /openapi.json.")
	}
	p := word(wire.CodeInvalid, http.StatusText(e.Code), fmt.Sprint(e.Message), "")
	p.Status = e.Code
	return p
}

// fail writes err as a problem. It is echo's error handler.
func (s *Server) fail(err error, c echo.Context) {
	ctx := c.Request().Context()
	if c.Response().Committed {
		return
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		c.Response().Status = statusClientGone // nobody reads the answer
		return
	}
	if denied, ok := errors.AsType[*access.DeniedError](err); ok {
		s.auditDenied(c.Request(), denied, c.Path())
	}
	p, known := problemOf(err)
	switch {
	case !known:
		s.log.ErrorContext(ctx, "a request failed", "method", c.Request().Method, "route", c.Path(), "error", err)
	case p.Status >= http.StatusInternalServerError:
		s.log.WarnContext(ctx, "a request failed", "method", c.Request().Method, "route", c.Path(), "code", p.Code, "error", err)
	}
	p.RequestID = requestID(ctx)
	header := c.Response().Header()
	if p.RetryAfterMS > 0 {
		header.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(float64(p.RetryAfterMS)/1000)), 10))
	}
	if p.Status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", `Bearer realm="fencegate"`)
	}
	header.Set(echo.HeaderContentType, "application/problem+json")
	extendWrite(c)
	c.Response().WriteHeader(p.Status)
	enc := json.NewEncoder(c.Response())
	enc.SetEscapeHTML(false)
	_ = enc.Encode(p) // the client may have gone
}

// statusClientGone is the status in the metrics for a client that disconnected.
const statusClientGone = 499

// writeTimeout bounds sending one answer.
const writeTimeout = time.Minute

func extendWrite(c echo.Context) {
	// Only a test's recorder fails here: it has no deadlines.
	_ = http.NewResponseController(c.Response()).SetWriteDeadline(time.Now().Add(writeTimeout))
}

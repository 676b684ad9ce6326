package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// Code is the code of a problem other than a refusal of the fence; those are in [fence.Codes].
type Code struct {
	Code    string
	Status  int
	Meaning string
}

// Codes are all codes. Treat it as read-only.
var Codes = []Code{
	{wire.CodeInvalid, http.StatusBadRequest, "`field` says which part is malformed; nothing was done. What is no HTTP at all gets plain text"},
	{wire.CodeUnauthorized, http.StatusUnauthorized, "the bearer token is missing or wrong, or of another principal than the client certificate"},
	{wire.CodeDenied, http.StatusForbidden, "the principal has no such right; nothing was done"},
	{wire.CodeNotFound, http.StatusNotFound, "the path, or what it names, does not exist"},
	{wire.CodeMethodNotAllowed, http.StatusMethodNotAllowed, "the path does not serve this method"},
	{wire.CodeHeld, http.StatusConflict, "another holds the resource, `holder` where it is known; `retry_after_ms` says when it may be free"},
	{wire.CodeConflict, http.StatusConflict, "the thing's state does not allow it, such as a rule under which objects were written"},
	{wire.CodeLeaseLost, http.StatusGone, "the lease is over: it ended, was released, was renewed for as long as it may be, or its resource was revoked"},
	{wire.CodeTooLarge, http.StatusRequestEntityTooLarge, "the body is over 1 MiB, or the result of SQL over its limit; nothing was done"},
	{wire.CodeKeyReused, http.StatusUnprocessableEntity, "the `Idempotency-Key` came with another request before; nothing was done"},
	{wire.CodeSQLError, http.StatusUnprocessableEntity, "a statement failed; `sqlstate` and `statement` say how and which; nothing was committed"},
	{wire.CodeRateLimited, http.StatusTooManyRequests, "the principal asks more often than `--api-rate` allows; `retry_after_ms` says when it may again; nothing was done"},
	{wire.CodeInternal, http.StatusInternalServerError, "the gateway failed; its log says more"},
	{wire.CodeNotImplemented, http.StatusNotImplemented, "this gateway is not configured for the call"},
	{wire.CodeUnknown, http.StatusBadGateway, "PostgreSQL's answer to COMMIT was lost: look before you repeat the call"},
	{wire.CodeUnavailable, http.StatusServiceUnavailable, "`part` is `postgresql`, `redis` or `gateway`; nothing was done, unless `hint` says otherwise"},
}

// StatusOf returns the HTTP status of a problem's code, one of [Codes] or a SQLSTATE of [fence.Codes]; 0: unknown code.
func StatusOf(code string) int {
	for _, c := range Codes {
		if c.Code == code {
			return c.Status
		}
	}
	for _, c := range fence.Codes {
		if c.SQLState == code {
			return c.HTTPStatus
		}
	}
	return 0
}

// codeProblem returns a problem whose code is one of [Codes].
func codeProblem(code, title, detail, hint string) wire.Problem {
	i := slices.IndexFunc(Codes, func(c Code) bool { return c.Code == code })
	return wire.Problem{Type: wire.ProblemType + strings.ReplaceAll(code, "_", "-"), Title: title, Status: Codes[i].Status, Detail: detail, Code: code, Hint: hint}
}

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
			return codeProblem(s.code, s.title, cmp.Or(s.detail, err.Error()), s.hint), true
		}
	}
	return codeProblem(wire.CodeInternal, "Internal error", "The gateway failed; its log says more.", ""), false
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
		p = codeProblem(wire.CodeUnknown, "The outcome is unknown",
			"The connection broke after COMMIT was sent: all of it has taken effect, or none of it.",
			"Read what the statements would have changed, under a current grant, before you run them again.")
	case errors.As(err, &statement):
		p = statementProblem(statement)
	case isRefusal(err):
		p = refusalProblem(err)
	case errors.As(err, &invalid):
		p = codeProblem(wire.CodeInvalid, "Invalid input", invalid.Error(), "")
		p.Field = invalid.Field
		if invalid == errForeign {
			p.Hint = foreignHint
		}
	case errors.As(err, &held):
		p = codeProblem(wire.CodeHeld, "Held by another", held.Error(), "Try again, or send a wait.")
		p.Resource, p.Holder, p.RetryAfterMS = held.Resource, held.Holder, held.RetryAfter.Milliseconds()
	case errors.As(err, &tooLarge):
		p = codeProblem(wire.CodeTooLarge, "Too large", tooLarge.Error(), "Nothing was done. Split the work.")
	case errors.As(err, &capped):
		p = codeProblem(wire.CodeLeaseLost, "The lease is lost", capped.Error(),
			"Acquire the resource again. The gateway's operator sets how long a lease may be renewed (--max-lease).")
	case errors.As(err, &lost):
		p = codeProblem(wire.CodeLeaseLost, "The lease is lost", lost.Error(), lostHint)
		p.Recorded = optionalToken(lost.recorded)
	case errors.As(err, &fast):
		p = codeProblem(wire.CodeRateLimited, "Too many requests", fast.Error(), "Nothing was done. Send fewer requests, or have the limit raised (--api-rate).")
		p.RetryAfterMS = fast.RetryAfter.Milliseconds() + 1
	case errors.As(err, &routing):
		p = routingProblem(routing)
	default:
		return p, false
	}
	return p, true
}

// unavailableProblem is the problem of a part that cannot be reached.
func unavailableProblem(away *leasing.UnavailableError, err error) wire.Problem {
	hint := "Nothing was done. Try again later."
	if halfDone, ok := errors.AsType[*halfDoneError](err); ok {
		hint = halfDone.hint
	} else if errors.Is(away.Cause, fence.ErrUnknown) {
		hint = "Whether it was done is unknown. Look, then try again later."
	}
	p := codeProblem(wire.CodeUnavailable, "Unavailable", unavailableDetail(away), hint)
	p.Part, p.RetryAfterMS = away.Part, retryAfter(away).Milliseconds()
	return p
}

// defaultRetry is Retry-After for an unavailable part if nobody knows when it returns.
const defaultRetry = time.Second

// retryAfter is when a retry may succeed.
func retryAfter(away *leasing.UnavailableError) time.Duration {
	var returning interface{ Left() time.Duration }
	if errors.As(away.Cause, &returning) && returning.Left() > 0 {
		return returning.Left()
	}
	return defaultRetry
}

func deniedProblem(denied *access.DeniedError, unknown bool) wire.Problem {
	done := "Nothing was done."
	if unknown {
		done = "Whether the lease was acquired is unknown; if it was, it ends at its TTL."
	}
	p := codeProblem(wire.CodeDenied, "Denied", denied.Error(), done+" The gateway's operator decides who may do what, in the file of --principals.")
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
		p.Detail, p.Resource, p.Presented, p.Recorded = stale.Error(), stale.Resource, optionalToken(stale.Presented), optionalToken(stale.Recorded)
	case errors.As(err, &noGrant):
		p.Detail, p.Needed = noGrant.Error(), noGrant.Needed
	case errors.As(err, &neverIssued):
		p.Detail, p.Resource, p.Presented, p.Recorded = neverIssued.Error(), neverIssued.Resource, optionalToken(neverIssued.Presented), optionalToken(neverIssued.Recorded)
	case errors.As(err, &wrong):
		p.Detail, p.Resource, p.Needed = wrong.Error(), wrong.Resource, wrong.Needed
	case errors.As(err, &undrained):
		p.Detail, p.Resource = undrained.Error(), undrained.Resource
	}
	return p
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
	p := codeProblem(wire.CodeSQLError, "SQL error", e.Message, e.Hint)
	p.SQLState, p.SQLDetail, p.Position, p.Statement = e.SQLState, e.Detail, e.Position, index
	return p
}

func routingProblem(e *echo.HTTPError) wire.Problem {
	switch e.Code {
	case http.StatusNotFound:
		return codeProblem(wire.CodeNotFound, "Not found", "There is no such path.", "See /openapi.json.")
	case http.StatusMethodNotAllowed:
		return codeProblem(wire.CodeMethodNotAllowed, "Method not allowed", "The path does not serve this method.", "See /openapi.json.")
	}
	p := codeProblem(wire.CodeInvalid, http.StatusText(e.Code), fmt.Sprint(e.Message), "")
	p.Status = e.Code
	return p
}

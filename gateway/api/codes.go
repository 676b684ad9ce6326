package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/fence"
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

// word returns a problem whose code is one of [Codes].
func word(code, title, detail, hint string) wire.Problem {
	i := slices.IndexFunc(Codes, func(c Code) bool { return c.Code == code })
	return wire.Problem{Type: wire.ProblemType + strings.ReplaceAll(code, "_", "-"), Title: title, Status: Codes[i].Status, Detail: detail, Code: code, Hint: hint}
}

package api

import (
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
)

// audit says in the log what was done, and, where there are principals, who did it. A value is
// never a grant, a handle or a token of a principal.
func (s *Server) audit(c echo.Context, what string, attrs ...any) {
	s.auditOf(c.Request(), what, attrs...)
}

func (s *Server) auditOf(r *http.Request, what string, attrs ...any) {
	if s.cfg.Principals != nil {
		attrs = append(attrs, who(r)...)
	}
	s.log.InfoContext(r.Context(), what, attrs...)
}

// auditAcquired tells of leases where there are principals: without them it is not known whose
// they are, and the events tell of them.
func (s *Server) auditAcquired(c echo.Context, all []leasing.Lease) {
	if s.cfg.Principals == nil {
		return
	}
	for _, lease := range all {
		s.audit(c, "a lease was acquired", "resource", lease.Grant.Resource, "token", lease.Grant.Token)
	}
}

func (s *Server) auditDenied(c echo.Context, denied *access.DeniedError) {
	s.audit(c, "a request was denied", "verb", denied.Verb, "resource", denied.Resource, "route", c.Path())
}

func who(r *http.Request) []any {
	return []any{slog.Group("audit", "principal", access.Of(r.Context()).Name(), "client", r.RemoteAddr)}
}

package api

import (
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
)

// audit logs what was done and, where there are principals, who did it. A value is never a grant, a handle or a token
// of a principal.
func (s *Server) audit(c echo.Context, what string, attrs ...any) {
	s.auditOf(c.Request(), what, attrs...)
}

func (s *Server) auditOf(r *http.Request, what string, attrs ...any) {
	if s.cfg.Principals != nil {
		attrs = append(attrs, who(r)...)
	}
	s.log.InfoContext(r.Context(), what, attrs...)
}

// auditAcquired logs acquired leases where there are principals. Without principals the client is not known, and the
// events report the leases.
func (s *Server) auditAcquired(c echo.Context, all []leasing.Lease) {
	if s.cfg.Principals == nil {
		return
	}
	for _, lease := range all {
		s.audit(c, "a lease was acquired", "resource", lease.Grant.Resource, "token", lease.Grant.Token)
	}
}

// auditManaged logs the use of a lease by a principal that has not acquired it.
func (s *Server) auditManaged(c echo.Context, what string, h handle) {
	if h.Principal != access.Of(c.Request().Context()).Name() {
		s.audit(c, what, "resource", h.Resource, "token", h.Token, "of", h.Principal)
	}
}

// auditIssued logs issued credentials where there are principals, as auditAcquired logs leases.
func (s *Server) auditIssued(c echo.Context, h handle, readOnly bool) {
	if s.cfg.Principals != nil {
		s.audit(c, "S3 credentials were issued", "resource", h.Resource, "token", h.Token, "read_only", readOnly)
	}
}

func (s *Server) auditDenied(r *http.Request, denied *access.DeniedError, route string) {
	s.auditOf(r, "a request was denied", "verb", denied.Verb, "resource", denied.Resource, "route", route)
}

func who(r *http.Request) []any {
	return []any{slog.Group("audit", "principal", access.Of(r.Context()).Name(), "client", r.RemoteAddr)}
}

package api

import (
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/wire"
)

// sessionCalls are the calls about sessions of the PostgreSQL port.
type sessionCalls struct {
	sessions Sessions // nil: there is no PostgreSQL port
	journal  *journal
}

var errNoPostgresPort = fmt.Errorf("%w: this gateway has no PostgreSQL port", ErrNotImplemented)

// list lists the sessions of this gateway; other gateways list their own.
func (s *sessionCalls) list(c echo.Context) error {
	if s.sessions == nil {
		return errNoPostgresPort
	}
	all := wire.Sessions{Sessions: []wire.Session{}}
	for _, one := range s.sessions.List() {
		one.Since = one.Since.UTC()
		all.Sessions = append(all.Sessions, one)
	}
	return respond(c, http.StatusOK, all)
}

func (s *sessionCalls) end(c echo.Context) error {
	if s.sessions == nil {
		return errNoPostgresPort
	}
	var body wire.EndRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	if err := leasing.ValidateHolder(body.By); err != nil {
		return &fence.InvalidError{Field: "by", Reason: "is too long, or has a control character"}
	}
	id := pathParam(c, "session")
	if !s.sessions.End(id) {
		return fmt.Errorf("%w: this gateway has no open session with this id; another replica may have it", ErrNotFound)
	}
	s.journal.audit(c.Request(), "a PostgreSQL session was ended by an operator", "session", id, "by", body.By)
	return c.NoContent(http.StatusNoContent)
}

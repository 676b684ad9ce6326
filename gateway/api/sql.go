package api

import (
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

const maxStatements = 100

func (s *Server) sql(c echo.Context) error {
	var body wire.SQLRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	switch n := len(body.Statements); {
	case s.cfg.SQL == nil:
		return fmt.Errorf("%w: this gateway has no login for SQL", ErrNotImplemented)
	case n == 0:
		return &fence.InvalidError{Field: "statements", Reason: "are empty"}
	case n > maxStatements:
		return &fence.InvalidError{Field: "statements", Reason: fmt.Sprintf("are %d; at most %d are allowed", n, maxStatements)}
	}
	grant, err := fence.FromHeader(c.Request().Header)
	if err != nil {
		return err
	}
	if err := check(c, access.SQL, grant.Resource); err != nil {
		return err
	}
	results, err := s.run(c.Request().Context(), grant, body.Statements)
	if err != nil {
		s.tellRefused(c, body.Statements, err)
		return err
	}
	return respond(c, http.StatusOK, wire.SQLAnswer{Results: results})
}

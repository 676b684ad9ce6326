package api

import (
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
)

// Headers that carry a grant.
const (
	// HeaderResource is the resource, percent-encoded as [fence.EscapeResource] does.
	HeaderResource = "Fencing-Resource"
	// HeaderToken is what the acquisition returned as its grant: "34.<seal>".
	HeaderToken = "Fencing-Token"
)

const maxStatements = 100

func (s *Server) sql(c echo.Context) error {
	var body struct {
		Statements []Statement `json:"statements"`
	}
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
	grant, err := grantOf(c.Request().Header)
	if err != nil {
		return err
	}
	results, err := s.cfg.SQL.Run(c.Request().Context(), grant, body.Statements)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, struct {
		Results []Result `json:"results"`
	}{results})
}

func grantOf(h http.Header) (fence.Grant, error) {
	resource, presented := h.Values(HeaderResource), h.Values(HeaderToken)
	switch {
	case len(resource) == 0 && len(presented) == 0:
		return fence.Grant{}, &fence.NoGrantError{}
	case len(resource) != 1:
		return fence.Grant{}, &fence.InvalidError{Field: HeaderResource, Reason: "is needed exactly once"}
	case len(presented) != 1:
		return fence.Grant{}, &fence.InvalidError{Field: HeaderToken, Reason: "is needed exactly once"}
	}
	name, err := fence.UnescapeResource(resource[0])
	if err != nil {
		return fence.Grant{}, err
	}
	return fence.ParseGrant(name, presented[0])
}

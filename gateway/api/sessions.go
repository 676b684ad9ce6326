package api

import (
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
)

// session is an open session of the PostgreSQL port, in JSON.
type session struct {
	ID         string       `json:"id"`
	Client     string       `json:"client"`
	User       string       `json:"user"`
	Database   string       `json:"database"`
	Resource   *string      `json:"resource"` // null: no grant came with the connection
	Token      *fence.Token `json:"token"`    // null: not known
	Leased     bool         `json:"leased"`
	State      string       `json:"state"`
	Since      time.Time    `json:"since"`
	FromClient int64        `json:"bytes_from_client"`
	ToClient   int64        `json:"bytes_to_client"`
}

var errNoPostgresPort = fmt.Errorf("%w: this gateway has no PostgreSQL port", ErrNotImplemented)

// sessions lists those of this gateway: each knows its own.
func (s *Server) sessions(c echo.Context) error {
	if s.cfg.Sessions == nil {
		return errNoPostgresPort
	}
	all := []session{}
	for _, one := range s.cfg.Sessions.List() {
		told := session{
			ID: one.ID, Client: one.Client, User: one.User, Database: one.Database, Token: token(one.Token), Leased: one.Leased,
			State: one.State, Since: one.Since.UTC(), FromClient: one.FromClient, ToClient: one.ToClient,
		}
		if one.Resource != "" {
			told.Resource = &one.Resource
		}
		all = append(all, told)
	}
	return respond(c, http.StatusOK, struct {
		Sessions []session `json:"sessions"`
	}{all})
}

func (s *Server) endSession(c echo.Context) error {
	if s.cfg.Sessions == nil {
		return errNoPostgresPort
	}
	var body struct {
		By string `json:"by"`
	}
	if err := decode(c, &body); err != nil {
		return err
	}
	if err := validateHolder(body.By); err != nil {
		return &fence.InvalidError{Field: "by", Reason: "is too long, or has a control character"}
	}
	id := pathParam(c, "session")
	if !s.cfg.Sessions.End(id) {
		return fmt.Errorf("%w: this gateway has no open session with this id; another replica may have it", ErrNotFound)
	}
	s.log.InfoContext(c.Request().Context(), "a PostgreSQL session was ended by an operator", "session", id, "by", body.By)
	return c.NoContent(http.StatusNoContent)
}

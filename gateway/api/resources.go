package api

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
)

const resourcesPath = "/v1/resources/"

type resourceResponse struct {
	Resource  string      `json:"resource"`
	Token     fence.Token `json:"token"`
	Sealed    bool        `json:"sealed"`
	Holder    string      `json:"holder"`
	ArmedAt   time.Time   `json:"armed_at"`
	Undrained int         `json:"undrained"`
	Locked    *bool       `json:"locked"` // null: a quorum of Redis is away
}

func (s *Server) inspect(c echo.Context) error {
	// The escaped path keeps an encoded slash apart from a plain one; both may
	// stand in a resource's name.
	escaped := strings.TrimPrefix(c.Request().URL.EscapedPath(), resourcesPath)
	resource, err := fence.UnescapeResource(escaped)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	record, err := s.cfg.Fences.Inspect(ctx, resource)
	if err != nil {
		return err
	}
	answer := resourceResponse{
		Resource: record.Resource, Token: record.Token, Sealed: record.Sealed,
		Holder: record.Holder, ArmedAt: record.ArmedAt.UTC(), Undrained: record.Undrained,
	}
	locked, err := s.cfg.Leases.Locked(ctx, resource)
	if err != nil {
		s.log.WarnContext(ctx, "whether a resource is locked is not known", "resource", resource, "error", err)
	} else {
		answer.Locked = &locked
	}
	return respond(c, http.StatusOK, answer)
}

// endpoints tells clients the other ports, by the host name that they reached
// this one by.
func (s *Server) endpoints(c echo.Context) error {
	return respond(c, http.StatusOK, s.endpointsFor(c))
}

func (s *Server) endpointsFor(c echo.Context) Endpoints {
	if s.cfg.Endpoints == nil {
		return Endpoints{}
	}
	return s.cfg.Endpoints(hostname(c.Request().Host))
}

func (s *Server) ensureBucket(c echo.Context) error {
	var body struct {
		Rule string `json:"rule"`
	}
	if err := decode(c, &body); err != nil {
		return err
	}
	if s.cfg.Buckets == nil {
		return fmt.Errorf("%w: this gateway serves no S3", ErrNotImplemented)
	}
	name := c.Param("bucket")
	created, err := s.cfg.Buckets.EnsureBucket(c.Request().Context(), name, body.Rule)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return respond(c, status, struct {
		Bucket string `json:"bucket"`
		Rule   string `json:"rule"`
	}{name, body.Rule})
}

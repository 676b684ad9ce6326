package api

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

// checkTimeout bounds one look at all parts.
const checkTimeout = 3 * time.Second

func (s *Server) health(c echo.Context) error {
	return respond(c, http.StatusOK, map[string]string{"status": "ok"})
}

// ready answers 200 where every part serves, else 503 naming the first that
// does not.
func (s *Server) ready(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), checkTimeout)
	defer cancel()
	failed := make([]error, len(s.cfg.Checks))
	var checks sync.WaitGroup
	for i, check := range s.cfg.Checks {
		checks.Go(func() { failed[i] = check.Run(ctx) })
	}
	checks.Wait()
	parts := make(map[string]string, len(failed))
	for i, err := range failed {
		if err != nil {
			return &UnavailableError{Part: s.cfg.Checks[i].Part, Cause: err}
		}
		parts[s.cfg.Checks[i].Part] = "ok"
	}
	return respond(c, http.StatusOK, struct {
		Status string            `json:"status"`
		Parts  map[string]string `json:"parts"`
	}{"ready", parts})
}

func (s *Server) metrics(c echo.Context) error {
	if s.cfg.Metrics == nil {
		return fmt.Errorf("%w: this gateway keeps no metrics", ErrNotImplemented)
	}
	extendWrite(c)
	s.cfg.Metrics.ServeHTTP(c.Response(), c.Request())
	return nil
}

//go:embed openapi.json
var openAPIDocument []byte

func openAPI(c echo.Context) error {
	extendWrite(c)
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, openAPIDocument)
}

package api

import (
	"context"
	"crypto/rand"
	"log/slog"
	"regexp"

	"github.com/labstack/echo/v4"
)

// saneID matches the request ids that are accepted from clients and balancers: they go into logs.
var saneID = regexp.MustCompile(`^[A-Za-z0-9._:+/=@-]{1,128}$`)

// requestIDKey is the context key of the request's id.
type requestIDKey struct{}

// identify gives each request an id: the one in the request if that is sane, else a new one. The answer, the log lines
// about the request and problems contain it.
func identify(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(echo.HeaderXRequestID)
		if !saneID.MatchString(id) {
			id = rand.Text()
		}
		c.Response().Header().Set(echo.HeaderXRequestID, id)
		c.SetRequest(c.Request().WithContext(context.WithValue(c.Request().Context(), requestIDKey{}, id)))
		return next(c)
	}
}

// requestID returns the request id in the context; "" if there is none.
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// idHandler is a log handler that adds the request's id to each line about a request.
type idHandler struct{ slog.Handler }

func (h idHandler) Handle(ctx context.Context, r slog.Record) error {
	if id := requestID(ctx); id != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("request_id", id))
	}
	return h.Handler.Handle(ctx, r)
}

func (h idHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return idHandler{h.Handler.WithAttrs(attrs)}
}

func (h idHandler) WithGroup(name string) slog.Handler { return idHandler{h.Handler.WithGroup(name)} }

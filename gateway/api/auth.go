package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
)

var errUnauthorized = errors.New("the bearer token is missing or wrong")

// authenticate lets requests pass that carry the bearer token. Where none is
// configured, the gateway listens on loopback only; then the Host must be a
// loopback name too, or a web page could reach it by a name of its own that
// resolves to 127.0.0.1.
func (s *Server) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	if s.cfg.BearerToken == "" {
		return func(c echo.Context) error {
			if !loopbackHost(c.Request().Host) {
				return &fence.InvalidError{Field: "Host", Reason: "is not a loopback address; without a bearer token no other is served"}
			}
			return s.as(access.Everybody(), c, next)
		}
	}
	want := sha256.Sum256([]byte(s.cfg.BearerToken))
	return func(c echo.Context) error {
		scheme, presented, _ := strings.Cut(c.Request().Header.Get(echo.HeaderAuthorization), " ")
		got := sha256.Sum256([]byte(presented)) // equal lengths for the comparison
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return errUnauthorized
		}
		return s.as(access.Everybody(), c, next)
	}
}

// as goes on as a principal: handlers ask [access.Of] what it may do.
func (s *Server) as(p *access.Principal, c echo.Context, next echo.HandlerFunc) error {
	c.SetRequest(c.Request().WithContext(access.With(c.Request().Context(), p)))
	return next(c)
}

func loopbackHost(host string) bool {
	host = hostname(host)
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// hostname is a Host header without its port.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

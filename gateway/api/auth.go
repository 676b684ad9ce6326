package api

import (
	"context"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/internal/tlsfiles"
	"github.com/fencegate/fencegate/wire"
)

var (
	errUnauthorized  = errors.New("the bearer token is missing or wrong")
	errTwoPrincipals = errors.New("the bearer token is one principal's, and the client certificate another's")
)

// authenticate admits requests that carry a principal's bearer token or client certificate or, without principals, the
// gateway's token. No other header identifies the caller. If neither is configured, the gateway listens on loopback
// only; the Host must then be a loopback name, too: otherwise a web page could reach the gateway by a name of its own
// that resolves to 127.0.0.1.
func (s *Server) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	if s.open() {
		return func(c echo.Context) error {
			if !loopbackHost(c.Request().Host) {
				return &fence.InvalidError{Field: "Host", Reason: "is not a loopback address; without a bearer token no other is served"}
			}
			return s.as(access.Everybody(), c, next)
		}
	}
	return func(c echo.Context) error {
		p, err := s.asker(c.Request())
		switch {
		case errors.Is(err, access.ErrUnknown):
			return errUnauthorized
		case err != nil:
			return err
		}
		if err := s.limited(c, p); err != nil {
			return err
		}
		return s.as(p, c, next)
	}
}

// asker is the principal of a request's bearer token or, without a token, of its client certificate. The two must not
// belong to two principals. A certificate that belongs to no principal is ignored beside a token.
func (s *Server) asker(r *http.Request) (*access.Principal, error) {
	shown, err := s.certified(r)
	header := r.Header.Get(echo.HeaderAuthorization)
	if header == "" {
		return shown, err
	}
	certified := err == nil
	scheme, presented, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, access.ErrUnknown
	}
	p, err := s.known(r.Context(), presented)
	if err == nil && certified && shown.Name() != p.Name() {
		return nil, errTwoPrincipals
	}
	return p, err
}

// certified is the principal of a request's client certificate.
func (s *Server) certified(r *http.Request) (*access.Principal, error) {
	if s.cfg.Principals == nil {
		return nil, access.ErrUnknown
	}
	cert := tlsfiles.ClientCertificate(r)
	if cert == nil {
		return nil, access.ErrUnknown
	}
	return s.cfg.Principals.AuthenticateCertificate(cert)
}

// open reports whether the API requires no token.
func (s *Server) open() bool { return s.cfg.Principals == nil && s.cfg.BearerToken == "" }

// known is the principal of a bearer token. The error is [access.ErrUnknown], or a [*leasing.UnavailableError] if an
// external issuer's token could not be verified.
func (s *Server) known(ctx context.Context, token string) (*access.Principal, error) {
	if s.cfg.Principals == nil {
		got, want := access.DigestOf(token), access.DigestOf(s.cfg.BearerToken) // equal lengths for the comparison
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return nil, access.ErrUnknown
		}
		return access.Everybody(), nil
	}
	p, err := s.cfg.Principals.Authenticate(ctx, token)
	if err != nil && !errors.Is(err, access.ErrUnknown) {
		return nil, &leasing.UnavailableError{Part: wire.PartGateway, Cause: err}
	}
	return p, err
}

// need admits principals that have a right for the whole gateway.
func need(v access.Verb) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if err := check(c, v, ""); err != nil {
				return err
			}
			return next(c)
		}
	}
}

// check returns an [*access.DeniedError] if the caller does not have the right.
func check(c echo.Context, v access.Verb, resource string) error {
	return access.Of(c.Request().Context()).Check(v, resource)
}

// mayUse is check for a lease: the caller's own lease needs the right to acquire it, another's the right to manage it.
func mayUse(c echo.Context, h handle) error {
	p := access.Of(c.Request().Context())
	if h.Principal == p.Name() && p.May(access.Acquire, h.Resource) {
		return nil
	}
	if h.Principal == p.Name() {
		return p.Denied(access.Acquire, h.Resource)
	}
	return p.Check(access.Manage, h.Resource)
}

// mayWrite is check for writes under a lease: only the lease's principal may write.
func mayWrite(c echo.Context, h handle) error {
	p := access.Of(c.Request().Context())
	if h.Principal != p.Name() {
		return p.Denied(access.Acquire, h.Resource)
	}
	return p.Check(access.Acquire, h.Resource)
}

// as continues as a principal: handlers call [access.Of] for its rights.
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

// hostname returns a Host header without its port.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

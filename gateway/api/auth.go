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

// authenticator says whose a request is.
type authenticator struct {
	principals  *access.Principals // nil: everybody is the same one
	bearerToken string             // without principals; "": no token
	rates       rates
}

// authenticate admits requests that carry a principal's bearer token or client certificate or, without principals, the
// gateway's token. No other header identifies the caller. If neither is configured, the gateway listens on loopback
// only; the Host must then be a loopback name, too: otherwise a web page could reach the gateway by a name of its own
// that resolves to 127.0.0.1.
func (a *authenticator) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	if a.open() {
		return func(c echo.Context) error {
			if !loopbackHost(c.Request().Host) {
				return &fence.InvalidError{Field: "Host", Reason: "is not a loopback address; without a bearer token no other is served"}
			}
			return serveAs(access.Everybody(), c, next)
		}
	}
	return func(c echo.Context) error {
		p, err := a.principalOf(c.Request())
		switch {
		case errors.Is(err, access.ErrUnknown):
			return errUnauthorized
		case err != nil:
			return err
		}
		if err := a.limit(c, p); err != nil {
			return err
		}
		return serveAs(p, c, next)
	}
}

// principalOf returns the principal of a request's bearer token or, without a token, of its client certificate. The two
// must not belong to two principals. A certificate that belongs to no principal is ignored beside a token.
func (a *authenticator) principalOf(r *http.Request) (*access.Principal, error) {
	shown, err := a.ofCertificate(r)
	header := r.Header.Get(echo.HeaderAuthorization)
	if header == "" {
		return shown, err
	}
	certified := err == nil
	scheme, bearer, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, access.ErrUnknown
	}
	p, err := a.ofToken(r.Context(), bearer)
	if err == nil && certified && shown.Name() != p.Name() {
		return nil, errTwoPrincipals
	}
	return p, err
}

// ofCertificate returns the principal of a request's client certificate.
func (a *authenticator) ofCertificate(r *http.Request) (*access.Principal, error) {
	if a.principals == nil {
		return nil, access.ErrUnknown
	}
	cert := tlsfiles.ClientCertificate(r)
	if cert == nil {
		return nil, access.ErrUnknown
	}
	return a.principals.AuthenticateCertificate(cert)
}

// open reports whether the API requires no token.
func (a *authenticator) open() bool { return a.principals == nil && a.bearerToken == "" }

// ofToken returns the principal of a bearer token. The error is [access.ErrUnknown], or a [*leasing.UnavailableError]
// if an external issuer's token could not be verified.
func (a *authenticator) ofToken(ctx context.Context, token string) (*access.Principal, error) {
	if a.principals == nil {
		got, want := access.DigestOf(token), access.DigestOf(a.bearerToken) // equal lengths for the comparison
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return nil, access.ErrUnknown
		}
		return access.Everybody(), nil
	}
	p, err := a.principals.Authenticate(ctx, token)
	if err != nil && !errors.Is(err, access.ErrUnknown) {
		return nil, &leasing.UnavailableError{Part: wire.PartGateway, Cause: err}
	}
	return p, err
}

// limit returns a [*RateError] if the principal exceeds its rate. Renewals and releases are never refused: that would
// lose leases, or hold them longer.
func (a *authenticator) limit(c echo.Context, p *access.Principal) error {
	if c.Path() == renewPath || c.Path() == releasePath {
		return nil
	}
	return a.rates.check(p.Name())
}

// requireRight admits principals that have a right for the whole gateway.
func requireRight(v access.Verb) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if err := checkRight(c, v, ""); err != nil {
				return err
			}
			return next(c)
		}
	}
}

// checkRight returns an [*access.DeniedError] if the caller does not have the right.
func checkRight(c echo.Context, v access.Verb, resource string) error {
	return access.Of(c.Request().Context()).Check(v, resource)
}

// mayUse is checkRight for a lease: the caller's own lease needs the right to acquire it, another's the right to manage
// it.
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

// mayWrite is checkRight for writes under a lease: only the lease's principal may write.
func mayWrite(c echo.Context, h handle) error {
	p := access.Of(c.Request().Context())
	if h.Principal != p.Name() {
		return p.Denied(access.Acquire, h.Resource)
	}
	return p.Check(access.Acquire, h.Resource)
}

// serveAs continues as a principal: handlers call [access.Of] for its rights.
func serveAs(p *access.Principal, c echo.Context, next echo.HandlerFunc) error {
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

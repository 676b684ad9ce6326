package s3

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// iam tells versitygw who signed a request. There are no accounts: only root, which versitygw knows, and the leases'
// credentials.
type iam struct {
	keys *credentials.Keyring
	// again is for how long expired credentials sign the repetition of a request, see [request.over]. A client that was
	// stopped beyond its lease asks again when it goes on.
	again time.Duration
}

var (
	_ auth.IAMService         = iam{}
	_ auth.SigningKeyProvider = iam{}
)

// errExpired refuses expired credentials, which change nothing and read nothing.
var errExpired = s3error.Error{
	Code: "ExpiredToken", Status: http.StatusBadRequest,
	Message: "The provided token has expired. Acquire the resource again and ask for new credentials.",
}

// DeriveSigningKey implements [auth.SigningKeyProvider]. The strings point into the request's buffer, so it copies what
// outlives the request.
func (i iam) DeriveSigningKey(access, sessionToken, date, region, service string) ([]byte, auth.Account, error) {
	if sessionToken == "" {
		if strings.HasPrefix(access, credentials.AccessPrefix) {
			return nil, auth.Account{}, auth.ErrInvalidSessionToken
		}
		return nil, auth.Account{}, auth.ErrNoSuchUser
	}
	t, err := i.keys.Verify(access, sessionToken, time.Now().Add(-i.again))
	switch {
	case errors.Is(err, credentials.ErrExpired):
		return nil, auth.Account{}, errExpired
	case err != nil:
		return nil, auth.Account{}, auth.ErrInvalidSessionToken
	}
	// Admin to versitygw, whose own access rules are not used: the backend decides.
	return t.SigningKey(date, region, service), auth.Account{Access: strings.Clone(access), Role: auth.RoleAdmin, SessionToken: strings.Clone(sessionToken), IsSession: true}, nil
}

// GetUserAccount implements [auth.IAMService].
func (iam) GetUserAccount(string) (auth.Account, error) {
	return auth.Account{}, auth.ErrNoSuchUser
}

// ResolveAccounts implements [auth.IAMService]. It reports no account as unknown: versitygw asks about those in ACLs
// and policies, which the backend checks.
func (iam) ResolveAccounts([]string) ([]string, error) { return nil, nil }

// CreateAccount implements [auth.IAMService].
func (iam) CreateAccount(auth.Account) error { return errNoAccounts }

// UpdateUserAccount implements [auth.IAMService].
func (iam) UpdateUserAccount(string, auth.MutableProps) error { return errNoAccounts }

// DeleteUserAccount implements [auth.IAMService].
func (iam) DeleteUserAccount(string) error { return errNoAccounts }

// ListUserAccounts implements [auth.IAMService].
func (iam) ListUserAccounts() ([]auth.Account, error) { return nil, errNoAccounts }

// Shutdown implements [auth.IAMService].
func (iam) Shutdown() error { return nil }

var errNoAccounts = s3err.GetAPIError(s3err.ErrAdminMethodNotSupported)

// verifySignature checks the signature of a request, in its headers or in its URL. versitygw does it, with the key that
// [iam.DeriveSigningKey] returns.
func (p *port) verifySignature(s steps, streams bool) []fiber.Handler {
	return []fiber.Handler{
		middlewares.VerifyPresignedV4Signature(p.root, p.iam, p.region, streams),
		middlewares.VerifyV4Signature(p.root, p.iam, p.region, streams, !s.has(sumOptional), s.has(anyRegion)),
	}
}

package jwt

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"

	"github.com/fencegate/fencegate/fence"
)

// Issuer is an issuer whose tokens count.
type Issuer struct {
	// URL is the tokens' iss, byte for byte. Their aud must contain Audience. Both are required.
	URL, Audience string
	// Algorithms are the allowed signature algorithms. Required; see [Algorithms].
	Algorithms []string
	// Keys is the https address of its JSON Web Key Set (RFC 7517), and KeysFile a file with one. One of the two is
	// required.
	Keys, KeysFile string
	// CA is a file with the CA certificates for the server of Keys. Defaults to the system's.
	CA string
}

// Algorithms returns the algorithms that may be configured: only asymmetric ones, because a key that verifies a
// symmetric signature can also make one.
func Algorithms() []string {
	return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
}

const maxIssuers = 20

// Validate returns a [*fence.InvalidError] for an invalid issuer.
func (i Issuer) Validate() error {
	invalid := func(field, reason string, args ...any) error {
		return &fence.InvalidError{Field: field, Reason: fmt.Sprintf(reason, args...)}
	}
	switch {
	case i.URL == "":
		return invalid("issuer", "is missing")
	case i.Audience == "":
		return invalid("audience", "is missing: tokens for other services would count here")
	case len(i.Algorithms) == 0:
		return invalid("algorithms", "are missing; allowed are %s", strings.Join(Algorithms(), ", "))
	case (i.Keys == "") == (i.KeysFile == ""):
		return invalid("keys", "or keys_file is needed, and not both")
	case i.KeysFile != "" && i.CA != "":
		return invalid("ca", "is for keys of an https address")
	}
	for _, a := range i.Algorithms {
		if !slices.Contains(Algorithms(), a) {
			return invalid("algorithms", "have %q; allowed are %s", a, strings.Join(Algorithms(), ", "))
		}
	}
	if i.Keys == "" {
		return nil
	}
	u, err := url.Parse(i.Keys)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return invalid("keys", "are not at an https address without a login")
	}
	return nil
}

func (i Issuer) algorithms() []jose.SignatureAlgorithm {
	all := make([]jose.SignatureAlgorithm, len(i.Algorithms))
	for n, a := range i.Algorithms {
		all[n] = jose.SignatureAlgorithm(a)
	}
	return all
}

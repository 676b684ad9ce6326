package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// ErrUnknown is the error of a token that belongs to no principal.
var ErrUnknown = errors.New("the token belongs to no principal")

// Verifier verifies tokens of external issuers and returns their claims. The error is [ErrUnknown] if the token is not
// an issuer's or not valid now, and another error if that could not be determined.
type Verifier interface {
	Verify(ctx context.Context, token string) (Identity, error)
}

// Successor is a [Verifier] that takes over what the previous one has learned. [Principals.Replace] calls Succeed,
// which reports whether all that the previous one trusted is trusted still.
type Successor interface {
	Succeed(before Verifier) (still bool)
}

// Identity holds the claims of a token whose signature, issuer, audience and times have been verified.
type Identity struct {
	Issuer  string
	Claims  map[string][]string // strings, and lists of strings
	Expires time.Time           // from then on the token belongs to no principal
}

// Claims match the tokens of an issuer in which each of these claims is the given string, or a list that contains it.
type Claims struct {
	Issuer string
	Equal  map[string]string
}

func (c Claims) fit(i Identity) bool {
	if c.Issuer != i.Issuer || len(c.Equal) == 0 {
		return false
	}
	for claim, value := range c.Equal {
		if !slices.Contains(i.Claims[claim], value) {
			return false
		}
	}
	return true
}

const (
	maxProofs = 10 // of each kind that one principal has: tokens, claims, names of certificates
	maxClaims = 10 // in one entry
)

func validateIssued(all []Claims) error {
	if len(all) > maxProofs {
		return &fence.InvalidError{Field: "jwt", Reason: fmt.Sprintf("has %d entries; at most %d are allowed", len(all), maxProofs)}
	}
	for _, c := range all {
		switch {
		case c.Issuer == "":
			return &fence.InvalidError{Field: "jwt", Reason: "has an entry without an issuer"}
		case len(c.Equal) == 0:
			return &fence.InvalidError{Field: "jwt", Reason: fmt.Sprintf("names no claims: every token of %q would be this principal's", c.Issuer)}
		case len(c.Equal) > maxClaims:
			return &fence.InvalidError{Field: "jwt", Reason: fmt.Sprintf("has %d claims; at most %d are allowed", len(c.Equal), maxClaims)}
		}
		for claim, value := range c.Equal {
			if claim == "" || value == "" {
				return &fence.InvalidError{Field: "jwt", Reason: "has a claim without a name or a value"}
			}
		}
	}
	return nil
}

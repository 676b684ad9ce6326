package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// ErrUnknown is the error of a token that is nobody's.
var ErrUnknown = errors.New("the token belongs to no principal")

// Verifier says what the tokens claim that others issue. Its errors are [ErrUnknown] where the
// token is not one of those, or not valid now, and another where that could not be found out.
type Verifier interface {
	Verify(ctx context.Context, token string) (Identity, error)
}

// Successor is a [Verifier] that goes on with what the one before it has learned, which
// [Principals.Replace] tells it of.
type Successor interface{ Succeed(before Verifier) }

// Option is one of [New] and of [Principals.Replace].
type Option func(*set)

// VerifiedBy says who verifies the tokens that others issue. Without it no such token counts,
// and no [Definition] may have any.
func VerifiedBy(v Verifier) Option { return func(s *set) { s.verify = v } }

// Identity is what a token claims whose signature, issuer, audience and times have been verified.
type Identity struct {
	Issuer  string
	Claims  map[string][]string // texts, and lists of texts
	Expires time.Time           // from then on the token belongs to no principal
}

// Claims say which tokens of an issuer are a principal's: those in which each of these claims
// is the text, or a list that has it.
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

func (r *rights) fit(i Identity) bool {
	return slices.ContainsFunc(r.definition.Issued, func(c Claims) bool { return c.fit(i) })
}

// claiming is whose token this is; of two whose claims it fits it is neither's.
func (ps *Principals) claiming(i Identity) (found *rights) {
	for _, r := range ps.current.Load().issued {
		if !r.fit(i) {
			continue
		}
		if found != nil {
			return nil
		}
		found = r
	}
	return found
}

func (ps *Principals) identified(i Identity) (*Principal, error) {
	r := ps.claiming(i)
	if r == nil || !time.Now().Before(i.Expires) {
		return &Principal{}, ErrUnknown
	}
	name := r.definition.Name
	return &Principal{name: name, ended: r.ended, expires: i.Expires, proof: "token", now: func() *rights {
		if r := ps.claiming(i); r != nil && r.definition.Name == name && time.Now().Before(i.Expires) {
			return r
		}
		return nil
	}}, nil
}

const maxClaims = 10 // in one mapping

func validateIssued(all []Claims) error {
	if len(all) > maxTokens {
		return &fence.InvalidError{Field: "jwt", Reason: fmt.Sprintf("has %d entries; at most %d are allowed", len(all), maxTokens)}
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

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

// succeed makes the set the successor of another. It reports whether tokens that the other's verifier has accepted may
// count still.
func (s *set) succeed(before *set) bool {
	next, ok := s.verify.(Successor)
	still := ok && before.verify != nil && next.Succeed(before.verify)
	if s.trust = before.trust; !still {
		s.trust++
	}
	return still
}

// Option is an option of [New] and of [Principals.Replace].
type Option func(*set)

// VerifiedBy sets the verifier of external issuers' tokens. Without it such tokens are unknown, and no [Definition] may
// have Issued.
func VerifiedBy(v Verifier) Option { return func(s *set) { s.verify = v } }

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

func (r *rights) fit(i Identity) bool {
	return slices.ContainsFunc(r.definition.Issued, func(c Claims) bool { return c.fit(i) })
}

// byClaims returns the rights of the principal whose claims match; nil if two principals match, or if what was trusted
// when the token was verified is trusted no longer.
func (ps *Principals) byClaims(i Identity, trust uint64) (found *rights) {
	current := ps.current.Load()
	if current.trust != trust {
		return nil
	}
	for _, r := range current.issued {
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

// verify returns the principal of an external issuer's token. If trust ends before the token counts, it is verified
// again.
func (ps *Principals) verify(ctx context.Context, token string) (*Principal, error) {
	for {
		current := ps.current.Load()
		if current.verify == nil {
			return &Principal{}, ErrUnknown
		}
		identity, err := current.verify.Verify(ctx, token)
		if err != nil {
			return &Principal{}, err
		}
		p, err := ps.principalOf(identity, current.trust)
		if err == nil || ps.current.Load().trust == current.trust {
			return p, err
		}
	}
}

// principalOf returns the principal of a token that was verified in a set with that trust.
func (ps *Principals) principalOf(i Identity, trust uint64) (*Principal, error) {
	r := ps.byClaims(i, trust)
	if r == nil || !time.Now().Before(i.Expires) {
		return &Principal{}, ErrUnknown
	}
	name := r.definition.Name
	return &Principal{name: name, ended: r.ended, expires: i.Expires, proof: "token", now: func() *rights {
		if r := ps.byClaims(i, trust); r != nil && r.definition.Name == name && time.Now().Before(i.Expires) {
			return r
		}
		return nil
	}}, nil
}

const maxClaims = 10 // in one entry

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

package access

import (
	"context"
	"crypto/subtle"
	"crypto/x509"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Principals are the principals of a gateway. They may be replaced while it serves. Safe for concurrent use.
type Principals struct {
	replacing sync.Mutex
	current   atomic.Pointer[set]
}

// set is immutable.
type set struct {
	tokens []ownToken
	issued []*rights // principals known by the claims of a token
	verify Verifier
	trust  uint64 // rises with each set whose verifier does not trust all that the previous one did
	byName map[string]*rights

	certificates map[string]*rights // by their names
}

type ownToken struct {
	digest Digest
	rights *rights
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

// New creates Principals. The error is a [*DefinitionError], or a [*fence.InvalidError] if there are none or too many.
func New(all []Definition, opts ...Option) (*Principals, error) {
	ps := &Principals{}
	if _, err := ps.Replace(all, opts...); err != nil {
		return nil, err
	}
	return ps, nil
}

// Change lists the principals that a [Principals.Replace] has changed, by name.
type Change struct{ Added, Changed, Removed []string }

// Replace replaces the principals at once, also for callers that are authenticated already. For a principal whose
// definition has changed, and for one with Issued whose verifier no longer trusts what it did, contexts of
// [Principal.Lasts] end. In the latter case who was known by an external issuer's token has no rights any more. After
// an error, as New's, nothing has changed.
func (ps *Principals) Replace(all []Definition, opts ...Option) (Change, error) {
	next := &set{byName: make(map[string]*rights, len(all)), certificates: make(map[string]*rights)}
	for _, o := range opts {
		o(next)
	}
	if err := Validate(all); err != nil {
		return Change{}, err
	}
	for i, d := range all {
		if len(d.Issued) > 0 && next.verify == nil {
			return Change{}, &DefinitionError{i, &fence.InvalidError{Field: "jwt", Reason: "needs an issuer, and there are none"}}
		}
	}
	ps.replacing.Lock()
	defer ps.replacing.Unlock()
	before := ps.current.Load()
	if before == nil {
		before = &set{}
	}
	trusted := next.succeed(before)
	var change Change
	for _, d := range all {
		old := before.byName[d.Name]
		r := old
		switch {
		case old == nil:
			change.Added = append(change.Added, d.Name)
		case !reflect.DeepEqual(old.definition, d), len(d.Issued) > 0 && !trusted:
			change.Changed = append(change.Changed, d.Name)
			r = nil
		}
		if r == nil {
			r = &rights{definition: d, ended: make(chan struct{})}
		}
		next.byName[d.Name] = r
		for _, t := range d.Tokens {
			next.tokens = append(next.tokens, ownToken{t, r})
		}
		if len(d.Issued) > 0 {
			next.issued = append(next.issued, r)
		}
		for _, name := range d.Certificates {
			next.certificates[name] = r
		}
	}
	ps.current.Store(next)
	for name, old := range before.byName {
		if next.byName[name] != old {
			close(old.ended)
		}
		if next.byName[name] == nil {
			change.Removed = append(change.Removed, name)
		}
	}
	slices.Sort(change.Removed)
	return change, nil
}

// Authenticate returns the principal of a token. The error is [ErrUnknown] if the token belongs to none, or the
// [Verifier]'s if the token could not be verified; then the principal may do nothing. Comparing the gateway's own
// tokens takes constant time.
func (ps *Principals) Authenticate(ctx context.Context, token string) (*Principal, error) {
	digest := DigestOf(token)
	if r := ps.byToken(digest); r != nil {
		name := r.definition.Name
		return &Principal{name: name, ended: r.ended, now: func() *rights {
			if r := ps.byToken(digest); r != nil && r.definition.Name == name { // a token may move to another principal
				return r
			}
			return nil
		}}, nil
	}
	return ps.verify(ctx, token)
}

func (ps *Principals) byToken(digest Digest) (found *rights) {
	for _, k := range ps.current.Load().tokens {
		if subtle.ConstantTimeCompare(k.digest[:], digest[:]) == 1 {
			found = k.rights
		}
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

func (r *rights) fit(i Identity) bool {
	return slices.ContainsFunc(r.definition.Issued, func(c Claims) bool { return c.fit(i) })
}

// AuthenticateCertificate returns the principal of a verified certificate. The error is [ErrUnknown] if no principal
// has one of its names, or two have. The principal's rights end with the certificate.
func (ps *Principals) AuthenticateCertificate(cert *x509.Certificate) (*Principal, error) {
	names := namesOf(cert)
	r := ps.byCertificate(names)
	if r == nil || !time.Now().Before(cert.NotAfter) {
		return &Principal{}, ErrUnknown
	}
	name := r.definition.Name
	return &Principal{name: name, ended: r.ended, expires: cert.NotAfter, proof: "certificate", now: func() *rights {
		if r := ps.byCertificate(names); r != nil && r.definition.Name == name && time.Now().Before(cert.NotAfter) {
			return r
		}
		return nil
	}}, nil
}

// byCertificate returns the rights of the principal with one of the names; nil if two principals match.
func (ps *Principals) byCertificate(names []string) (found *rights) {
	known := ps.current.Load().certificates
	for _, name := range names {
		switch r := known[name]; {
		case r == nil || r == found:
		case found != nil:
			return nil
		default:
			found = r
		}
	}
	return found
}

// KnowsCertificates reports whether any principal is known by a certificate.
func (ps *Principals) KnowsCertificates() bool { return len(ps.current.Load().certificates) > 0 }

// May reports what the principal with this name may do now.
func (ps *Principals) May(name string, v Verb, resource string) bool {
	p, _ := ps.ByName(name)
	return p.May(v, resource)
}

// ByName returns the principal with a name that another system has authenticated; false if there is none. A principal
// that does not exist may do nothing.
func (ps *Principals) ByName(name string) (p *Principal, ok bool) {
	r := ps.current.Load().byName[name]
	p = &Principal{name: name, now: func() *rights { return ps.current.Load().byName[name] }}
	if r != nil {
		p.ended = r.ended
	}
	return p, r != nil
}

package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/fencegate/fencegate/fence"
)

// Digest is the SHA-256 of a bearer token. A gateway knows only the digest.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a token.
func DigestOf(token string) Digest { return sha256.Sum256([]byte(token)) }

// ParseDigest parses 64 hexadecimal digits. The error contains none of them: the text may be the token itself.
func ParseDigest(text string) (d Digest, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(d) {
		return d, &fence.InvalidError{Field: "token", Reason: "is not a SHA-256 in 64 hexadecimal digits; `fencegate principals hash` makes one of a token"}
	}
	return Digest(b), nil
}

// String returns the digest in hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// S3Prefix begins the name of the principal of an S3 port's own key: s3:KEY.
const S3Prefix = "s3:"

// Definition defines a principal.
type Definition struct {
	Name string
	// Tokens are the digests of its tokens, several during a rotation.
	Tokens []Digest
	// Issued are the claims of external issuers' tokens by which it is known, too.
	Issued []Claims
	// Certificates are names of verified client certificates by which it is known, too: dns:NAME,
	// uri:URI or email:ADDRESS.
	Certificates []string
	Rules        []Rule
}

// Bounds of the configuration: each request compares its token with all of them.
const (
	maxPrincipals = 1000
	maxTokens     = 10  // of one principal
	maxRules      = 100 // likewise
)

// DefinitionError names the definition that is refused.
type DefinitionError struct {
	Index int // in the list
	Err   error
}

func (e *DefinitionError) Error() string { return e.Err.Error() }
func (e *DefinitionError) Unwrap() error { return e.Err }

// Principals are the principals of a gateway. They may be replaced while it serves. Safe for concurrent use.
type Principals struct {
	replacing sync.Mutex
	current   atomic.Pointer[set]
}

// set is immutable.
type set struct {
	tokens []known
	issued []*rights // principals known by the claims of a token
	verify Verifier
	trust  uint64 // rises with each set whose verifier does not trust all that the previous one did
	byName map[string]*rights

	certificates map[string]*rights // by their names
}

type known struct {
	digest Digest
	rights *rights
}

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
			next.tokens = append(next.tokens, known{t, r})
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

// Validate returns the error that [New] would return for these definitions.
func Validate(all []Definition) error {
	switch n := len(all); {
	case n == 0:
		return &fence.InvalidError{Field: "principals", Reason: "is an empty list: no client could do anything; omit it to allow everything"}
	case n > maxPrincipals:
		return &fence.InvalidError{Field: "principals", Reason: fmt.Sprintf("are %d; at most %d are allowed", n, maxPrincipals)}
	}
	names, tokens, certificates := map[string]bool{}, map[Digest]string{}, map[string]string{}
	for i, d := range all {
		err := d.validate()
		if err == nil && names[d.Name] {
			err = &fence.InvalidError{Field: "name", Reason: fmt.Sprintf("%q is that of another principal", d.Name)}
		}
		names[d.Name] = true
		for _, t := range d.Tokens {
			if other, twice := tokens[t]; twice && err == nil {
				err = &fence.InvalidError{Field: "tokens", Reason: fmt.Sprintf("have one of %q", other)}
			}
			tokens[t] = d.Name
		}
		for _, c := range d.Certificates {
			if other, twice := certificates[c]; twice && err == nil {
				err = &fence.InvalidError{Field: "certificates", Reason: fmt.Sprintf("have one of %q", other)}
			}
			certificates[c] = d.Name
		}
		if err != nil {
			return &DefinitionError{Index: i, Err: err}
		}
	}
	return nil
}

func (d Definition) validate() error {
	if err := validateName(d.Name); err != nil {
		return err
	}
	elsewhere := strings.HasPrefix(d.Name, S3Prefix)
	switch {
	case d.Name == S3Prefix:
		return &fence.InvalidError{Field: "name", Reason: "is without the key; s3:KEY is needed"}
	case elsewhere && len(d.Tokens)+len(d.Issued)+len(d.Certificates) > 0:
		return &fence.InvalidError{Field: "tokens", Reason: "are not allowed for s3:KEY, whose key signs requests to the S3 port"}
	case !elsewhere && len(d.Tokens)+len(d.Issued)+len(d.Certificates) == 0:
		return &fence.InvalidError{Field: "tokens", Reason: "are missing, and so are jwt and certificates: nobody could be this principal"}
	case len(d.Tokens) > maxTokens:
		return &fence.InvalidError{Field: "tokens", Reason: fmt.Sprintf("are %d; at most %d are allowed", len(d.Tokens), maxTokens)}
	case len(d.Rules) > maxRules:
		return &fence.InvalidError{Field: "allow", Reason: fmt.Sprintf("has %d rules; at most %d are allowed", len(d.Rules), maxRules)}
	}
	if err := validateIssued(d.Issued); err != nil {
		return err
	}
	if err := validateCertificates(d.Certificates); err != nil {
		return err
	}
	for _, t := range d.Tokens {
		if t == DigestOf("") {
			return &fence.InvalidError{Field: "tokens", Reason: "have that of an empty token"}
		}
	}
	for _, r := range d.Rules {
		if err := r.Validate(); err != nil {
			return err
		}
	}
	return nil
}

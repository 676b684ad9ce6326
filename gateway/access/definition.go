package access

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

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
	maxRules      = 100 // of one principal
)

// DefinitionError names the definition that is refused.
type DefinitionError struct {
	Index int // in the list
	Err   error
}

func (e *DefinitionError) Error() string { return e.Err.Error() }
func (e *DefinitionError) Unwrap() error { return e.Err }

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
	case len(d.Tokens) > maxProofs:
		return &fence.InvalidError{Field: "tokens", Reason: fmt.Sprintf("are %d; at most %d are allowed", len(d.Tokens), maxProofs)}
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

// maxName keeps a name's length in one byte, and a name in a log line.
const maxName = 200

func validateName(name string) error {
	switch {
	case name == "":
		return &fence.InvalidError{Field: "name", Reason: "is missing"}
	case len(name) > maxName:
		return &fence.InvalidError{Field: "name", Reason: fmt.Sprintf("is %d bytes long; at most %d are allowed", len(name), maxName)}
	case fence.ValidateResource(name) != nil || strings.TrimSpace(name) != name: // the characters of a resource's name
		return &fence.InvalidError{Field: "name", Reason: "has control characters, a \"*\" or spaces around it, or is not valid UTF-8"}
	}
	return nil
}

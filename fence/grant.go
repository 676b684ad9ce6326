package fence

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Token is a fencing token: a positive number that strictly rises, per resource, in the order of acquisition. In JSON
// it is a string, because it may exceed the exact range of a double.
type Token int64

// ParseToken reads a decimal fencing token. Zero, a sign, a leading zero, a non-digit, and a value above the int64
// range are an [*InvalidError].
func ParseToken(s string) (Token, error) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, &InvalidError{Field: "token", Reason: "is not a decimal number"}
		}
	}
	switch {
	case s == "":
		return 0, &InvalidError{Field: "token", Reason: "is empty"}
	case s == "0":
		return 0, &InvalidError{Field: "token", Reason: "is 0; tokens start at 1"}
	case s[0] == '0':
		return 0, &InvalidError{Field: "token", Reason: "has a leading zero"}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, &InvalidError{Field: "token", Reason: "is over the int64 range"}
	}
	return Token(n), nil
}

// String is the token in decimal.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// MarshalText writes the token in decimal, so that JSON carries it as a string.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is [ParseToken].
func (t *Token) UnmarshalText(text []byte) error {
	parsed, err := ParseToken(string(text))
	if err != nil {
		return err
	}
	*t = parsed
	return nil
}

// sealBytes is the seal's entropy: 128 bits.
const sealBytes = 16

// Seal is a secret that proves that a token was issued to its presenter. The acquirer creates it; the fence stores
// only its SHA-256. The zero Seal means "unsealed". Printing or logging a Seal shows no secret; [Seal.Reveal] returns
// it.
type Seal struct{ text string }

// NewSeal makes a seal from 128 random bits.
func NewSeal() Seal {
	var b [sealBytes]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process if the system has no randomness
	return Seal{text: hex.EncodeToString(b[:])}
}

// ParseSeal reads a seal: 32 lower-case hexadecimal digits. The [*InvalidError]
// does not repeat the input.
func ParseSeal(s string) (Seal, error) {
	if len(s) != 2*sealBytes {
		return Seal{}, &InvalidError{Field: "seal", Reason: fmt.Sprintf("is %d characters long; a seal has %d", len(s), 2*sealBytes)}
	}
	if !isLowerHex(s) {
		return Seal{}, &InvalidError{Field: "seal", Reason: "is not lower-case hexadecimal"}
	}
	return Seal{text: s}, nil
}

func isLowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// IsZero reports whether there is no seal.
func (s Seal) IsZero() bool { return s.text == "" }

// Reveal returns the secret. Keep the result out of logs, errors and process lists.
func (s Seal) Reveal() string { return s.text }

// Hash is the SHA-256 of the seal's text form, which the fence stores. It is nil for the zero Seal.
func (s Seal) Hash() []byte {
	if s.IsZero() {
		return nil
	}
	h := sha256.Sum256([]byte(s.text))
	return h[:]
}

// Equal compares in constant time.
func (s Seal) Equal(other Seal) bool {
	return subtle.ConstantTimeCompare([]byte(s.text), []byte(other.text)) == 1
}

const redacted = "[seal]"

// String hides the secret.
func (s Seal) String() string {
	if s.IsZero() {
		return ""
	}
	return redacted
}

// GoString hides the secret from %#v.
func (s Seal) GoString() string { return "fence.Seal(" + s.String() + ")" }

// LogValue hides the secret from log/slog.
func (s Seal) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the secret from encoders.
func (s Seal) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Grant is what a writer presents: a resource, its fencing token, and the seal that the token was issued with.
//
// Token 0 with a seal means "the token that was issued with this seal", for writers that get their seal before their
// token.
type Grant struct {
	Resource string
	Token    Token
	Seal     Seal
}

// ParseGrant reads a grant from a resource name (not percent-encoded) and the
// presented token: "34.<seal>", "0.<seal>", or a bare "34", which is unsealed.
// Errors are [*InvalidError] and never repeat the presented text.
func ParseGrant(resource, presented string) (Grant, error) {
	if err := ValidateResource(resource); err != nil {
		return Grant{}, err
	}
	number, sealText, sealed := strings.Cut(presented, ".")
	g := Grant{Resource: resource}
	if sealed {
		seal, err := ParseSeal(sealText)
		if err != nil {
			return Grant{}, err
		}
		g.Seal = seal
		if number == "0" {
			return g, nil
		}
	}
	token, err := ParseToken(number)
	if err != nil {
		return Grant{}, err
	}
	g.Token = token
	return g, nil
}

// Validate reports whether the grant is well formed. The error is an [*InvalidError].
func (g Grant) Validate() error {
	if err := ValidateResource(g.Resource); err != nil {
		return err
	}
	switch {
	case g.Token < 0:
		return &InvalidError{Field: "token", Reason: "is negative"}
	case g.Token == 0 && g.Seal.IsZero():
		return &InvalidError{Field: "token", Reason: "is 0 without a seal"}
	}
	return nil
}

// Presented is the text that a writer presents: "34.<seal>" or "34". It contains the secret: keep it out of logs,
// errors and process lists.
func (g Grant) Presented() string {
	if g.Seal.IsZero() {
		return g.Token.String()
	}
	return g.Token.String() + "." + g.Seal.Reveal()
}

// String names the grant for display and logs, without its seal: "orders/1001#34".
func (g Grant) String() string { return g.Resource + "#" + g.Token.String() }

// Arming is a request to raise the fence of a resource to a new token, as the
// last step of acquiring it.
type Arming struct {
	Resource string
	Token    Token
	SealHash []byte // SHA-256 of the new grant's seal; nil arms unsealed
	Holder   string // display name of the lease's holder
}

// MaxHolderBytes bounds [Arming.Holder] to keep a fence's row small: HOT updates need its versions to share a page.
const MaxHolderBytes = 512

// Validate reports whether the request is well formed. The error is an [*InvalidError].
func (a Arming) Validate() error {
	if err := ValidateResource(a.Resource); err != nil {
		return err
	}
	switch {
	case a.Token <= 0:
		return &InvalidError{Field: "token", Reason: "is not positive"}
	case a.SealHash != nil && len(a.SealHash) != sha256.Size:
		return &InvalidError{Field: "seal hash", Reason: fmt.Sprintf("is %d bytes long; a SHA-256 has %d", len(a.SealHash), sha256.Size)}
	case len(a.Holder) > MaxHolderBytes:
		return &InvalidError{Field: "holder", Reason: fmt.Sprintf("is %d bytes long; at most %d are allowed", len(a.Holder), MaxHolderBytes)}
	case !utf8.ValidString(a.Holder) || strings.IndexByte(a.Holder, 0) >= 0:
		return &InvalidError{Field: "holder", Reason: "is not valid UTF-8 without zero bytes"}
	}
	return nil
}

package leases

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// maxBase keeps tokens below 2^53, so that every client can represent them.
const maxBase = 1 << 52

// ParseBase parses the number that a store adds to its own counter of changes to make a token. at names the place where
// the store keeps it.
func ParseBase(at, text string) (fence.Token, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > maxBase {
		return 0, fmt.Errorf("%s holds %.40q, which is not a base of tokens: set it to the highest token that a fence records", at, text)
	}
	return fence.Token(n), nil
}

// ValidateBase returns a [*fence.InvalidError] unless a base of store can be raised above the token.
func ValidateBase(store string, above fence.Token) error {
	if above > maxBase {
		return &fence.InvalidError{Field: "token", Reason: fmt.Sprintf("is %d; %s's tokens stay below %d", above, store, int64(maxBase))}
	}
	return nil
}

// Owner is what a store keeps as a lease's value. It identifies the acquisition, and is compared as a whole.
type Owner struct {
	Nonce  string
	Base   fence.Token // what the counter is added to
	Holder string      // informational
}

// NewOwner returns the owner of a new acquisition.
func NewOwner(base fence.Token, holder string) Owner {
	return Owner{Nonce: rand.Text(), Base: base, Holder: holder}
}

func (o Owner) String() string { return fmt.Sprintf("%s.%d.%s", o.Nonce, o.Base, o.Holder) }

// ParseOwner returns false for a value that [Owner.String] did not write.
func ParseOwner(value string) (Owner, bool) {
	nonce, rest, ok := strings.Cut(value, ".")
	digits, holder, more := strings.Cut(rest, ".")
	base, err := strconv.ParseInt(digits, 10, 64)
	return Owner{Nonce: nonce, Base: fence.Token(base), Holder: holder}, ok && more && err == nil && base >= 0
}

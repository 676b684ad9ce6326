package zklock

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// owner is the value of a resource's node. It identifies the acquisition, and is compared as a whole.
type owner struct {
	nonce  string
	base   fence.Token // what the czxid is added to
	holder string      // informational
}

func newOwner(base fence.Token, holder string) owner {
	return owner{nonce: rand.Text(), base: base, holder: holder}
}

func (o owner) String() string { return fmt.Sprintf("%s.%d.%s", o.nonce, o.base, o.holder) }

// parseOwner parses a node's value. It returns false for a value that this package did not write.
func parseOwner(value string) (owner, bool) {
	nonce, rest, ok := strings.Cut(value, ".")
	digits, holder, more := strings.Cut(rest, ".")
	base, err := strconv.ParseInt(digits, 10, 64)
	return owner{nonce: nonce, base: fence.Token(base), holder: holder}, ok && more && err == nil && base >= 0
}

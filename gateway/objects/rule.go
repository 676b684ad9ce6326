package objects

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// Rule says which resource a write of a key needs. The zero Rule is [BucketRule].
type Rule struct {
	depth int
	mode  string // "" is a lease
}

const (
	modeLease    = "lease" // in PostgreSQL
	modeMonotone = "monotone"
	modeNone     = "none"
)

// BucketRule makes the whole bucket one resource, "bucket".
func BucketRule() Rule { return Rule{} }

// PrefixRule makes the first n components of the key, separated by slashes, the resource: with n = 1 the key
// "1001/invoice.txt" in "orders" needs "orders/1001". A key with fewer components needs all of them. n below 1 is
// [BucketRule].
func PrefixRule(n int) Rule { return Rule{depth: max(n, 0)} }

// KeyRule makes each key a resource of its own, "bucket/key".
func KeyRule() Rule { return Rule{depth: wholeKey} }

// NoRule requires no token. The root credentials may write, and those of any lease; the last writer wins.
func NoRule() Rule { return Rule{mode: modeNone} }

// Monotone returns the rule for tokens that are issued elsewhere: the root credentials sign the header Fencing-Token
// with a bare number, and from then on a higher one refuses all lower ones of the same resource.
func (r Rule) Monotone() Rule { return Rule{depth: r.depth, mode: modeMonotone} }

const (
	wholeKey  = -1
	maxPrefix = 64
)

// ParseRule parses "bucket", "prefix:n" with n from 1 to 64, "key", one of them after "monotone:", "monotone" for
// "monotone:bucket", or "none". The error is a [*fence.InvalidError].
func ParseRule(s string) (Rule, error) {
	switch rest, monotone := strings.CutPrefix(s, modeMonotone+":"); {
	case s == modeNone:
		return NoRule(), nil
	case s == modeMonotone:
		return BucketRule().Monotone(), nil
	case monotone:
		r, err := parseDepth(rest)
		return r.Monotone(), err
	}
	return parseDepth(s)
}

func parseDepth(s string) (Rule, error) {
	switch s {
	case "bucket":
		return BucketRule(), nil
	case "key":
		return KeyRule(), nil
	}
	number, isPrefix := strings.CutPrefix(s, "prefix:")
	n, err := strconv.Atoi(number)
	if !isPrefix || err != nil || n < 1 || n > maxPrefix || number != strconv.Itoa(n) {
		return Rule{}, &fence.InvalidError{Field: "rule", Reason: fmt.Sprintf("is %q; it must be bucket, prefix:n (n from 1 to %d), key, monotone, monotone: before one of them, or none", s, maxPrefix)}
	}
	return PrefixRule(n), nil
}

// String returns the form that [ParseRule] parses.
func (r Rule) String() string {
	switch {
	case r.mode == modeNone:
		return modeNone
	case r.mode == modeMonotone && r.depth == 0:
		return modeMonotone
	case r.mode == modeMonotone:
		return modeMonotone + ":" + Rule{depth: r.depth}.String()
	case r.depth == 0:
		return "bucket"
	case r.depth < 0:
		return "key"
	}
	return "prefix:" + strconv.Itoa(r.depth)
}

// Resource returns the resource that a write of the key needs; "" under [NoRule].
func (r Rule) Resource(bucket, key string) string {
	switch {
	case r.mode == modeNone:
		return ""
	case r.depth == 0:
		return bucket
	case r.depth < 0:
		return bucket + "/" + key
	}
	parts := strings.SplitN(key, "/", r.depth+1)
	return bucket + "/" + strings.Join(parts[:min(len(parts), r.depth)], "/")
}

// stored returns the mode in PostgreSQL's form.
func (r Rule) stored() string {
	if r.mode == "" {
		return modeLease
	}
	return r.mode
}

// read sets the mode from PostgreSQL's form.
func (r *Rule) read(mode string) {
	if r.mode = mode; mode == modeLease {
		r.mode = ""
	}
}

// Unchecked reports whether writes need no token, as under [NoRule].
func (r Rule) Unchecked() bool { return r.mode == modeNone }

// IsMonotone reports whether tokens are issued elsewhere, as under [Rule.Monotone].
func (r Rule) IsMonotone() bool { return r.mode == modeMonotone }

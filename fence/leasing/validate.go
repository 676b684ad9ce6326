package leasing

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fencegate/fencegate/fence"
)

// maxHolderBytes bounds a holder's name, which is stored with each lock.
const maxHolderBytes = 200

// Validate checks a request, for a source whose leases last from shortest to longest. The error is a
// [*fence.InvalidError].
func (r Request) Validate(shortest, longest time.Duration) error {
	if err := cmp.Or(fence.ValidateResource(r.Resource), ValidateTTL(r.TTL, shortest, longest), ValidateHolder(r.Holder)); err != nil {
		return err
	}
	if r.SealHash != nil && len(r.SealHash) != sha256.Size {
		return &fence.InvalidError{Field: "seal hash", Reason: fmt.Sprintf("is %d bytes long; a SHA-256 has %d", len(r.SealHash), sha256.Size)}
	}
	return nil
}

// Distinct refuses an empty list, and one that names a resource twice. The error is a [*fence.InvalidError].
func Distinct[T any](all []T, resource func(T) string) error {
	if len(all) == 0 {
		return &fence.InvalidError{Field: "resources", Reason: "are missing"}
	}
	if len(all) == 1 {
		return nil
	}
	named := make(map[string]bool, len(all))
	for _, one := range all {
		if named[resource(one)] {
			return &fence.InvalidError{Field: "resources", Reason: "name one resource twice"}
		}
		named[resource(one)] = true
	}
	return nil
}

// MinTTL is the shortest TTL of a lease, from whichever source. At the default node timeout of a lock over Redis it is
// acquired and kept alive while every node answers just in time.
const MinTTL = 300 * time.Millisecond

// ValidateTTL checks how long a lease lives. The error is a [*fence.InvalidError].
func ValidateTTL(ttl, shortest, longest time.Duration) error {
	switch {
	case ttl <= 0:
		return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; it must be positive", ttl)}
	case ttl < shortest:
		return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; at least %v is needed", ttl, shortest)}
	case ttl > longest:
		return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; at most %v is allowed", ttl, longest)}
	}
	return nil
}

// ValidateHolder refuses names that an Armer's database or a terminal could not handle once the lock is taken. The error
// is a [*fence.InvalidError].
func ValidateHolder(name string) error {
	switch {
	case len(name) > maxHolderBytes:
		return &fence.InvalidError{Field: "holder", Reason: fmt.Sprintf("is %d bytes long; at most %d are allowed", len(name), maxHolderBytes)}
	case !utf8.ValidString(name):
		return &fence.InvalidError{Field: "holder", Reason: "is not valid UTF-8"}
	case strings.ContainsFunc(name, unicode.IsControl):
		return &fence.InvalidError{Field: "holder", Reason: "contains a control character"}
	}
	return nil
}

// Validate checks the form that every source's reference has. The error is a [*fence.InvalidError].
func (r Ref) Validate() error {
	if r.Owner == "" {
		return &fence.InvalidError{Field: "owner", Reason: "is missing"}
	}
	return fence.ValidateResource(r.Resource)
}

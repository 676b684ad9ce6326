package leases

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

const maxHolderBytes = 256

// Good is a lease's deadline as its holder counts it: from before the first message, minus the margin for clock drift.
func Good(start time.Time, ttl time.Duration) time.Time {
	return start.Add(ttl - ttl/100 - 2*time.Millisecond)
}

func (s *Source) validate(r leasing.Request) (leasing.Request, error) {
	r.Holder = cmp.Or(r.Holder, s.cfg.Holder)
	if err := cmp.Or(fence.ValidateResource(r.Resource), s.validateTTL(r.TTL), validateHolder(r.Holder)); err != nil {
		return r, err
	}
	if r.SealHash != nil && len(r.SealHash) != sha256.Size {
		return r, &fence.InvalidError{Field: "seal hash", Reason: fmt.Sprintf("is %d bytes long; a SHA-256 has %d", len(r.SealHash), sha256.Size)}
	}
	return r, nil
}

func (s *Source) validateTTL(ttl time.Duration) error {
	switch {
	case ttl < s.cfg.MinTTL:
		return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; at least %v is needed", ttl, s.cfg.MinTTL)}
	case ttl > s.cfg.MaxTTL:
		return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; at most %v is allowed", ttl, s.cfg.MaxTTL)}
	}
	return nil
}

func validateHolder(name string) error {
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

func validateRef(ref leasing.Ref) error {
	if ref.Owner == "" {
		return &fence.InvalidError{Field: "owner", Reason: "is missing"}
	}
	return fence.ValidateResource(ref.Resource)
}

func (s *Source) validateAll(all []leasing.Request) ([]leasing.Request, error) {
	if len(all) == 0 {
		return nil, &fence.InvalidError{Field: "resources", Reason: "are missing"}
	}
	named := make(map[string]bool, len(all))
	valid := make([]leasing.Request, len(all))
	for i, r := range all {
		r, err := s.validate(r)
		switch {
		case err != nil:
			return nil, err
		case named[r.Resource]:
			return nil, &fence.InvalidError{Field: "resources", Reason: "name one resource twice"}
		}
		named[r.Resource], valid[i] = true, r
	}
	return valid, nil
}

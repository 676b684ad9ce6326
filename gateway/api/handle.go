package api

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// HandleKeys authenticate the handles of leases. All replicas share them. To rotate, add a key under a new id on all
// replicas, then make it current, and drop the old one when the last lease under it is over.
type HandleKeys struct {
	Current string            // id of the key that signs; at most 255 bytes
	Master  map[string][]byte // by id; at least 32 bytes each
}

// handle is the content of a lease's opaque handle. It never holds the seal: with a handle a client can renew and
// release, not write.
type handle struct {
	leasing.Ref

	Principal string    // whose lease it is; "": anyone's
	Since     time.Time // of the acquisition; wall clock, to the millisecond
	Until     time.Time // renewals end here; zero: no limit
}

// left returns how long the lease may still be renewed. It fails once that time is over.
func (h handle) left() (time.Duration, error) {
	if h.Until.IsZero() {
		return math.MaxInt64, nil
	}
	left := time.Until(h.Until)
	if left <= 0 {
		return 0, &cappedError{after: h.Until.Sub(h.Since)}
	}
	return left, nil
}

// cappedError reports that a lease has reached the limit of its renewals.
type cappedError struct{ after time.Duration }

func (e *cappedError) Error() string {
	return fmt.Sprintf("%v: it ended %v after its acquisition, the longest that this gateway allows (--max-lease)", leasing.ErrLost, e.after)
}

func (e *cappedError) Unwrap() error { return leasing.ErrLost }

const (
	handleVersion = 3
	// handleBefore is the version without a time of acquisition: its leases end maxLeaseBefore after it.
	handleBefore   = 2
	maxLeaseBefore = 24 * time.Hour
	macBytes       = sha256.Size
	// The labels separate these uses of the master keys from every other.
	handleLabel = "fencegate lease handle v2"
	sealLabel   = "fencegate idempotency key v1"
)

// sealer makes and opens handles.
type sealer struct {
	current  string
	keys     map[string][]byte
	sealKeys map[string][]byte // derive the seals of acquisitions with an Idempotency-Key
}

func newSealer(keys HandleKeys) (*sealer, error) {
	s := &sealer{current: keys.Current, keys: make(map[string][]byte, len(keys.Master)), sealKeys: make(map[string][]byte, len(keys.Master))}
	for id, master := range keys.Master {
		if id == "" || len(id) > 255 {
			return nil, &fence.InvalidError{Field: "Handles", Reason: "have a key id that is empty or over 255 bytes"}
		}
		if len(master) < 32 {
			return nil, &fence.InvalidError{Field: "Handles", Reason: "have a master key of fewer than 32 bytes: " + id}
		}
		key, err := hkdf.Key(sha256.New, master, nil, handleLabel, sha256.Size)
		if err != nil {
			return nil, err
		}
		s.keys[id] = key
		if s.sealKeys[id], err = hkdf.Key(sha256.New, master, nil, sealLabel, sha256.Size); err != nil {
			return nil, err
		}
	}
	if s.keys[s.current] == nil {
		return nil, &fence.InvalidError{Field: "Handles", Reason: "have no key with the current id"}
	}
	return s, nil
}

// make writes version, key id, principal, owner, token, end of renewals,
// acquisition and resource, and the MAC over them, in base64url.
func (s *sealer) make(h handle) string {
	b := []byte{handleVersion, byte(len(s.current))}
	b = append(b, s.current...)
	for _, text := range []string{h.Principal, h.Owner} {
		b = append(b, byte(len(text)))
		b = append(b, text...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(h.Token))
	until := int64(0)
	if !h.Until.IsZero() {
		until = h.Until.UnixMilli()
	}
	b = binary.BigEndian.AppendUint64(b, uint64(until))
	b = binary.BigEndian.AppendUint64(b, uint64(h.Since.UnixMilli()))
	b = append(b, h.Resource...)
	return base64.RawURLEncoding.EncodeToString(append(b, mac(s.keys[s.current], b)...))
}

func mac(key, b []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(b)
	return h.Sum(nil)
}

// errForeign: no master key of this gateway has signed the handle.
var errForeign = &fence.InvalidError{Field: "handle", Reason: "is not one that this gateway has issued: it is damaged, or of a gateway with another master key"}

// open parses a handle. It checks the MAC before it uses anything but the key's id. The error is a
// [*fence.InvalidError].
func (s *sealer) open(text string) (handle, error) {
	if text == "" {
		return handle{}, &fence.InvalidError{Field: "handle", Reason: "is missing"}
	}
	all, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(all) < 2+macBytes {
		return handle{}, errForeign
	}
	b, sum := all[:len(all)-macBytes], all[len(all)-macBytes:]
	id, rest, ok := cutBytes(b[1:])
	if !ok || b[0] != handleVersion && b[0] != handleBefore {
		return handle{}, errForeign
	}
	key := s.keys[string(id)]
	if key == nil || !hmac.Equal(sum, mac(key, b)) {
		return handle{}, errForeign
	}
	principal, rest, ok := cutBytes(rest)
	if !ok {
		return handle{}, errForeign
	}
	owner, rest, ok := cutBytes(rest)
	numbers := 3
	if b[0] == handleBefore {
		numbers = 2
	}
	if !ok || len(rest) < 8*numbers {
		return handle{}, errForeign
	}
	h := handle{
		Principal: string(principal),
		Ref: leasing.Ref{
			Owner:    string(owner),
			Token:    fence.Token(binary.BigEndian.Uint64(rest)),
			Resource: string(rest[8*numbers:]),
		},
	}
	if until := int64(binary.BigEndian.Uint64(rest[8:])); until != 0 {
		h.Until = time.UnixMilli(until)
	}
	if b[0] == handleBefore {
		h.Since = h.Until.Add(-maxLeaseBefore)
	} else {
		h.Since = time.UnixMilli(int64(binary.BigEndian.Uint64(rest[16:])))
	}
	return h, nil
}

// cutBytes cuts a byte string with a one-byte length prefix.
func cutBytes(b []byte) (value, rest []byte, ok bool) {
	if len(b) == 0 || len(b)-1 < int(b[0]) {
		return nil, nil, false
	}
	n := 1 + int(b[0])
	return b[1:n], b[n:], true
}

// seals derives an acquisition's seals under each master key, the current one first.
func (s *sealer) seals(of []byte) (all []fence.Seal) {
	all = append(all, sealUnder(s.sealKeys[s.current], of))
	for id, key := range s.sealKeys {
		if id != s.current {
			all = append(all, sealUnder(key, of))
		}
	}
	return all
}

func sealUnder(key, of []byte) fence.Seal {
	h := hmac.New(sha256.New, key)
	h.Write(of)
	seal, err := fence.ParseSeal(hex.EncodeToString(h.Sum(nil)[:16]))
	if err != nil {
		panic(err) // 32 hex digits are a seal
	}
	return seal
}

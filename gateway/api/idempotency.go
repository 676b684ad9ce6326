package api

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/wire"
)

// An acquisition with an Idempotency-Key derives its seals from the key, under the master key. So every gateway of a
// group can tell from the fence alone whether the current grant of a resource belongs to an earlier request with the
// same key. No other state is kept.

const minKeyBytes, maxKeyBytes = 16, 128

var errOtherRequest = errors.New("this Idempotency-Key came with another request before")

// idempotencyKey parses the key of a request; "" if there is none. The error is a [*fence.InvalidError].
func idempotencyKey(r *http.Request) (string, error) {
	values := r.Header.Values(wire.IdempotencyKey)
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 || !validKey(values[0]) {
		return "", &fence.InvalidError{Field: wire.IdempotencyKey, Reason: "is not one text of 16 to 128 visible ASCII characters"}
	}
	return values[0], nil
}

func validKey(key string) bool {
	for _, b := range []byte(key) {
		if b <= ' ' || b > '~' {
			return false
		}
	}
	return len(key) >= minKeyBytes && len(key) <= maxKeyBytes
}

// framed joins texts so that different lists give different bytes.
func framed(texts ...string) (b []byte) {
	for _, text := range texts {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(text))), text...)
	}
	return b
}

// fingerprint identifies requests, without their waits: a repeat has less time.
func fingerprint(requests []leasing.Request) [sha256.Size]byte {
	var all []byte
	for _, r := range requests {
		all = append(all, framed(r.Resource, r.TTL.String(), r.Holder)...)
	}
	return sha256.Sum256(all)
}

const (
	keyTime       = 10 * time.Minute
	maxRecentKeys = 10_000
	sweepEvery    = 1_000 // requests
)

// recentKeys holds the latest keys of this gateway and their requests, to refuse a key that is reused for another
// request.
type recentKeys struct {
	mu       sync.Mutex
	requests int
	keys     map[[sha256.Size]byte]recentKey
}

type recentKey struct {
	what [sha256.Size]byte
	at   time.Time
}

func newRecentKeys() *recentKeys {
	return &recentKeys{keys: make(map[[sha256.Size]byte]recentKey)}
}

// same records the request of a key, and reports whether it is the same as before.
func (r *recentKeys) same(key, what [sha256.Size]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.requests++; r.requests%sweepEvery == 0 {
		for k, known := range r.keys {
			if now.Sub(known.at) > keyTime {
				delete(r.keys, k)
			}
		}
	}
	if known, ok := r.keys[key]; ok && now.Sub(known.at) <= keyTime && known.what != what {
		return false
	}
	for k := range r.keys {
		if len(r.keys) < maxRecentKeys {
			break
		}
		delete(r.keys, k) // an arbitrary one: only its refusal is lost
	}
	r.keys[key] = recentKey{what, now}
	return true
}

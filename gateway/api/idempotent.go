package api

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// An acquisition with an Idempotency-Key derives its seals from the key, under the master key. So every gateway of a
// group can tell from the fence alone whether the current grant of a resource belongs to an earlier request with the
// same key. No other state is kept.

const (
	minKeyBytes, maxKeyBytes = 16, 128

	// onceLabel separates this use of the master keys from every other.
	onceLabel = "fencegate idempotency key v1"
)

var errOtherRequest = errors.New("this Idempotency-Key came with another request before")

// acquisitionOf parses the key, if there is one, and sets the seals of the requests.
func (s *Server) acquisitionOf(c echo.Context, requests []leasing.Request) (*acquisition, error) {
	a := &acquisition{s: s, requests: requests}
	values := c.Request().Header.Values(wire.IdempotencyKey)
	if len(values) == 0 {
		return a, nil
	}
	key := values[0]
	if len(values) > 1 || !validKey(key) {
		return nil, &fence.InvalidError{Field: wire.IdempotencyKey, Reason: "is not one text of 16 to 128 visible ASCII characters"}
	}
	who := access.Of(c.Request().Context()).Name()
	what := fingerprint(requests)
	if !s.remembered.same(sha256.Sum256(framed(who, key)), what) {
		return nil, errOtherRequest
	}
	for i, r := range requests {
		seals := s.handles.seals(framed(who, key, r.Resource, string(what[:])))
		requests[i].SealHash, requests[i].Repeatable, a.seals = seals[0].Hash(), true, append(a.seals, seals)
	}
	return a, nil
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

// seals derives an acquisition's seals under each master key, the current one first.
func (s *sealer) seals(of []byte) (all []fence.Seal) {
	all = append(all, sealUnder(s.once[s.current], of))
	for id, key := range s.once {
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

// look returns the leases if the key has all of them; else nil. An error says that this is unknown.
func (a *acquisition) look(ctx context.Context) ([]leasing.Lease, error) {
	var all []leasing.Lease
	var since []time.Time
	for i, r := range a.requests {
		lease, at, err := a.s.found(ctx, r, a.seals[i])
		if errors.Is(err, errNotTheKeys) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		all, since = append(all, lease), append(since, at)
	}
	a.since = since
	return all, nil
}

// errNotTheKeys reports that a resource is not held under a key.
var errNotTheKeys = errors.New("the key does not hold the resource")

// found returns the lease of a resource whose current grant has one of the seals, and when it was acquired. It extends
// the lease, because its holder receives it only now.
func (s *Server) found(ctx context.Context, r leasing.Request, seals []fence.Seal) (lease leasing.Lease, since time.Time, err error) {
	record, err := s.recorded(ctx, r.Resource)
	switch {
	case errors.Is(err, ErrNotFound):
		return lease, since, errNotTheKeys
	case err != nil:
		return lease, since, err
	case !record.Sealed || record.EndedAt != nil || r.Holder != "" && record.Holder != r.Holder:
		return lease, since, errNotTheKeys
	}
	seal, err := s.sealOf(ctx, record, seals)
	if err != nil {
		return lease, since, err
	}
	state, err := leasing.One(s.cfg.Leases.Inspect(ctx, r.Resource))
	switch {
	case err != nil:
		return lease, since, leaseError(ctx, err)
	case !state.Locked || state.Owner == "" || state.Token != record.Token:
		return lease, since, errNotTheKeys
	}
	ref := leasing.Ref{Resource: r.Resource, Owner: state.Owner, Token: record.Token}
	left, err := s.handleOf(ref, "", record.ArmedAt).left()
	if err != nil {
		return lease, since, errNotTheKeys // it may not be extended any more
	}
	lease.Deadline, err = s.extend(ctx, ref, min(max(r.TTL, state.TTL), cmp.Or(s.cfg.MaxTTL, left)), left)
	switch {
	case errors.Is(err, leasing.ErrLost):
		return lease, since, errNotTheKeys
	case err != nil:
		return lease, since, leaseError(ctx, err)
	}
	lease.Grant = fence.Grant{Resource: r.Resource, Token: record.Token, Seal: seal}
	lease.Owner = state.Owner
	return lease, record.ArmedAt, nil
}

// sealOf returns the seal of the recorded grant among the given ones, or errNotTheKeys.
func (s *Server) sealOf(ctx context.Context, record fence.Record, seals []fence.Seal) (fence.Seal, error) {
	for _, seal := range seals {
		if ours, err := s.cfg.Fences.Holds(ctx, record, seal.Hash()); ours || err != nil {
			return seal, err
		}
	}
	return fence.Seal{}, errNotTheKeys
}

const (
	rememberedFor  = 10 * time.Minute
	maxRemembered  = 10_000
	sweepEachAsked = 1_000
)

// remembered holds the latest keys of this gateway and their requests, to refuse a key that is reused for another
// request.
type remembered struct {
	mu    sync.Mutex
	asked int
	keys  map[[sha256.Size]byte]rememberedKey
}

type rememberedKey struct {
	what [sha256.Size]byte
	at   time.Time
}

func newRemembered() *remembered {
	return &remembered{keys: make(map[[sha256.Size]byte]rememberedKey)}
}

// same records the request of a key, and reports whether it is the same as before.
func (r *remembered) same(key, what [sha256.Size]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.asked++; r.asked%sweepEachAsked == 0 {
		for k, known := range r.keys {
			if now.Sub(known.at) > rememberedFor {
				delete(r.keys, k)
			}
		}
	}
	if known, ok := r.keys[key]; ok && now.Sub(known.at) <= rememberedFor && known.what != what {
		return false
	}
	for k := range r.keys {
		if len(r.keys) < maxRemembered {
			break
		}
		delete(r.keys, k) // an arbitrary one: only its refusal is lost
	}
	r.keys[key] = rememberedKey{what, now}
	return true
}

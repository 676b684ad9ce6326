package api

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
)

// An acquisition with an Idempotency-Key takes its seals from the key, under the master key. So
// every gateway of a group can tell, from the fence alone, whether the current grant of a
// resource is that of an earlier request with the same key: nothing is kept for it anywhere.

const (
	maxKeyBytes = 128
	// onceLabel separates this use of the master keys from every other.
	onceLabel = "fencegate idempotency key v1"
)

var errOtherRequest = errors.New("this Idempotency-Key came with another request before")

// once is an acquisition with an Idempotency-Key; nil: one without.
type once struct {
	s        *Server
	requests []leasing.Request
	seals    [][]fence.Seal // of each request; the first is what a new lease gets
	since    []time.Time    // of the leases that were found: when they were acquired; nil: they are new
}

// once reads the key, and has the requests ask for its seals.
func (s *Server) once(c echo.Context, requests []leasing.Request) (*once, error) {
	values := c.Request().Header.Values(wire.IdempotencyKey)
	if len(values) == 0 {
		return nil, nil //nolint:nilnil // it is optional
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
	o := &once{s: s, requests: requests}
	for i, r := range requests {
		seals := s.handles.seals(framed(who, key, r.Resource, string(what[:])))
		requests[i].SealHash, o.seals = seals[0].Hash(), append(o.seals, seals)
	}
	return o, nil
}

func validKey(key string) bool {
	for _, b := range []byte(key) {
		if b <= ' ' || b > '~' {
			return false
		}
	}
	return len(key) >= fence.MinNonceBytes && len(key) <= maxKeyBytes
}

// framed joins texts so that no two lists give the same bytes.
func framed(texts ...string) (b []byte) {
	for _, text := range texts {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(text))), text...)
	}
	return b
}

// fingerprint tells requests apart. How long one waits is not part of it: a repeat has less time.
func fingerprint(requests []leasing.Request) [sha256.Size]byte {
	var all []byte
	for _, r := range requests {
		all = append(all, framed(r.Resource, r.TTL.String(), r.Holder)...)
	}
	return sha256.Sum256(all)
}

// seals are those that an acquisition gets under each master key, the current one first.
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
		panic(err) // 32 digits are one
	}
	return seal
}

// acquire acquires, or finds what an earlier request with the key got.
func (o *once) acquire(ctx context.Context, wait time.Duration, acquire acquiring) ([]leasing.Lease, error) {
	if o == nil {
		return acquire(ctx, wait)
	}
	// Not while this very acquisition is under way: it may have armed, and yet give back.
	if wait > 0 {
		if found := o.look(ctx); found != nil {
			return found, nil
		}
	}
	all, err := acquire(ctx, wait)
	if err == nil {
		o.since = nil
		for i := range all {
			all[i].Grant.Seal = o.seals[i][0]
		}
		return all, nil
	}
	if wait <= 0 && errors.Is(err, leasing.ErrHeld) && ctx.Err() == nil {
		if found := o.look(ctx); found != nil {
			return found, nil
		}
	}
	return nil, err
}

// look returns the leases where the key has all of them; else nil.
func (o *once) look(ctx context.Context) []leasing.Lease {
	var all []leasing.Lease
	var since []time.Time
	for i, r := range o.requests {
		lease, at, ok := o.s.found(ctx, r, o.seals[i])
		if !ok {
			return nil
		}
		all, since = append(all, lease), append(since, at)
	}
	o.since = since
	return all
}

// found is the lease of a resource whose current grant has one of the seals. It is extended, as
// its holder learns of it only now.
func (s *Server) found(ctx context.Context, r leasing.Request, seals []fence.Seal) (leasing.Lease, time.Time, bool) {
	none := func() (leasing.Lease, time.Time, bool) { return leasing.Lease{}, time.Time{}, false }
	record, err := s.cfg.Fences.Inspect(ctx, r.Resource)
	if err != nil || !record.Sealed || record.EndedAt != nil || r.Holder != "" && record.Holder != r.Holder {
		return none()
	}
	seal, ok := s.sealOf(ctx, record, seals)
	if !ok {
		return none()
	}
	state, err := s.cfg.Leases.Inspect(ctx, r.Resource)
	if err != nil || !state.Locked || state.Owner == "" || state.Token != record.Token {
		return none()
	}
	ref := leasing.Ref{Resource: r.Resource, Owner: state.Owner, Token: record.Token}
	left, err := s.handleOf(ref, "", record.ArmedAt).left()
	if err != nil {
		return none()
	}
	valid, err := s.cfg.Leases.Extend(ctx, ref, min(max(r.TTL, state.TTL), s.cfg.MaxTTL, left))
	if err != nil {
		return none()
	}
	return leasing.Lease{
		Grant: fence.Grant{Resource: r.Resource, Token: record.Token, Seal: seal}, Owner: state.Owner, Deadline: time.Now().Add(valid),
	}, record.ArmedAt, true
}

// sealOf is which of the seals the recorded grant has.
func (s *Server) sealOf(ctx context.Context, record fence.Record, seals []fence.Seal) (fence.Seal, bool) {
	for _, seal := range seals {
		if ours, err := s.cfg.Fences.Holds(ctx, record, seal.Hash()); ours || err != nil {
			return seal, err == nil
		}
	}
	return fence.Seal{}, false
}

// sinceOf is when a lease was acquired.
func (o *once) sinceOf(i int) time.Time {
	if o == nil || o.since == nil {
		return time.Now()
	}
	return o.since[i]
}

const (
	rememberedFor  = 10 * time.Minute
	maxRemembered  = 10_000
	sweepEachAsked = 1_000
)

// remembered are the latest keys of this gateway, and the requests that they came with: so that
// a key that is used for another one is refused and not taken for a new one.
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

// same notes what a key is for, and reports whether it was for the same before.
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
		delete(r.keys, k) // any of them: what is lost is a refusal
	}
	r.keys[key] = rememberedKey{what, now}
	return true
}

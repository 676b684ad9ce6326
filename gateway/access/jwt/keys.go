package jwt

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Bounds of a key set and of requests for it.
const (
	maxSet   = 1 << 20 // bytes
	maxKeys  = 100
	maxTried = 8    // for a token that names no key
	minRSA   = 2048 // bits
	maxRSA   = 8192
	patience = 5 * time.Second // for one answer

	refreshAfter = 10 * time.Minute // a use of older keys requests the set
	waitAfter    = 2 * refreshAfter // how long a withdrawn key counts while its issuer's server answers
	againAfter   = 30 * time.Second // the pause after an unknown kid or an error
	trustedFor   = 24 * time.Hour   // how long keys count while the issuer's server does not answer
)

// keys are the latest known keys of an issuer. Safe for concurrent use.
type keys struct {
	fetch func(ctx context.Context) ([]jose.JSONWebKey, error)
	now   func() time.Time

	mu      sync.Mutex
	known   []jose.JSONWebKey
	fetched time.Time // when known was requested; zero: never
	asked   time.Time
	asking  chan struct{} // closed when the request has ended; nil: no request is running
	late    bool          // the request began after waitAfter without one: known keys wait for its answer, too
	err     error         // of the last request
}

// byID returns the keys with a kid; if that is "", the first keys. It requests the set again if the key is unknown or
// the set is old. A caller with a known key waits for that only if no set was requested for waitAfter; if the request
// fails, the key counts. The error says that the keys are unavailable.
func (k *keys) byID(ctx context.Context, kid string) ([]jose.JSONWebKey, error) {
	for {
		k.mu.Lock()
		now := k.now()
		trusted := !k.fetched.IsZero() && now.Sub(k.fetched) < trustedFor
		var found []jose.JSONWebKey
		if trusted {
			found = withID(k.known, kid)
		}
		due := len(found) == 0 || k.asked.IsZero() || now.Sub(k.fetched) >= refreshAfter
		if k.asking == nil && due && (k.asked.IsZero() || now.Sub(k.asked) >= againAfter) {
			k.late = now.Sub(k.fetched) >= waitAfter && now.Sub(k.asked) >= waitAfter
			k.asked, k.asking = now, make(chan struct{})
			go k.ask(now, k.asking) //nolint:gosec // G118: others wait for the answer, too, and its time is bounded
		}
		asking, late, err := k.asking, k.late, k.err
		k.mu.Unlock()
		switch {
		case len(found) > 0 && (asking == nil || !late):
			return found, nil
		case asking == nil && trusted:
			return nil, nil
		case asking == nil:
			return nil, err
		}
		select {
		case <-asking:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// inherit takes over the keys of other. The first use still requests the set.
func (k *keys) inherit(other *keys) {
	other.mu.Lock()
	known, fetched := other.known, other.fetched
	other.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known, k.fetched = known, fetched
}

// ask requests the set once, within patience, so no stop has to wait for it.
func (k *keys) ask(began time.Time, done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, err := k.fetch(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err = err; err == nil {
		k.known, k.fetched = all, began
	}
	k.asking = nil
	close(done)
}

func withID(all []jose.JSONWebKey, kid string) (found []jose.JSONWebKey) {
	for _, k := range all {
		if kid == "" || k.KeyID == kid {
			found = append(found, k)
		}
	}
	return found[:min(len(found), maxTried)] // each costs a verification, and anyone can cause it
}

// fetchFrom fetches the set from an https address.
func fetchFrom(client *http.Client, address string) func(context.Context) ([]jose.JSONWebKey, error) {
	return func(ctx context.Context) ([]jose.JSONWebKey, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
		if err != nil {
			return nil, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s: %s", address, resp.Status)
		}
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxSet+1))
		if err != nil {
			return nil, err
		}
		all, err := parseSet(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", address, err)
		}
		return all, nil
	}
}

// parseSet parses a key set, and skips keys that cannot verify a signature here: an issuer may publish others, too.
func parseSet(text []byte) (all []jose.JSONWebKey, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	switch err := json.Unmarshal(text, &set); {
	case len(text) > maxSet:
		return nil, fmt.Errorf("has more than %d bytes", maxSet)
	case err != nil:
		return nil, errors.New("is not a JSON Web Key Set")
	case len(set.Keys) > maxKeys:
		return nil, fmt.Errorf("has %d keys; at most %d are read", len(set.Keys), maxKeys)
	}
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(raw) == nil && (key.Use == "" || key.Use == "sig") && strong(key.Key) {
			all = append(all, key)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("has no public key for signatures (RSA of %d to %d bits, elliptic curve, Ed25519)", minRSA, maxRSA)
	}
	return all, nil
}

func strong(key any) bool {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return k.N.BitLen() >= minRSA && k.N.BitLen() <= maxRSA
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false // a private key, a secret
}

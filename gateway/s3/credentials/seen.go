package credentials

import (
	"crypto/hmac"
	"crypto/sha256"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// seenTokens remember session tokens that were authenticated, with what follows from
// them alone: a client sends the same one with each request. Nothing in it ages
// but by the clock, which is asked each time: keys are never taken out of a
// keyring. Safe for concurrent use.
type seenTokens struct {
	mu     sync.RWMutex
	tokens map[string]*Verified
}

// Verified is an authentic session token.
type Verified struct {
	session Session
	access  string
	secret  string
	signing atomic.Pointer[signingKey] // the last one that was asked for
}

// signingKey is derived from a secret for a day, a region and a service.
type signingKey struct {
	date, region, service string
	key                   []byte
}

// maxSeen bounds the memory; those of one gateway's leases fit in.
const maxSeen = 4096

func (k *seenTokens) get(text string) *Verified {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.tokens[text]
}

// put remembers a token that is authentic, and no other.
func (k *seenTokens) put(text string, t *Verified) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tokens == nil || len(k.tokens) >= maxSeen {
		k.tokens = map[string]*Verified{}
	}
	k.tokens[strings.Clone(text)] = t
}

// SigningKey is the key that requests of a day are signed with. It is shared: not
// to be changed.
func (t *Verified) SigningKey(date, region, service string) []byte {
	if s := t.signing.Load(); s != nil && s.date == date && s.region == region && s.service == service {
		return s.key
	}
	key := []byte("AWS4" + t.secret)
	for _, part := range []string{date, region, service, "aws4_request"} {
		key = keyed(key, []byte(part))
	}
	t.signing.Store(&signingKey{strings.Clone(date), strings.Clone(region), strings.Clone(service), key})
	return key
}

// Session is what a session token says.
type Session struct {
	Principal string // who was given it; "": nobody by name
	Resource  string
	Token     fence.Token
	Expires   time.Time
	Terms     Terms
}

func keyed(key, message []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(message)
	return h.Sum(nil)
}

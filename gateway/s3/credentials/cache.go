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

// tokenCache caches authenticated session tokens, and what follows from them alone: a client sends the same one with
// each request. Expiry is checked at each use, and a keyring never loses a key, so nothing else in the cache becomes
// invalid. Safe for concurrent use.
type tokenCache struct {
	mu     sync.RWMutex
	tokens map[string]*Verified
}

// Verified is an authentic session token.
type Verified struct {
	session Session
	access  string
	secret  string
	signing atomic.Pointer[signingKey] // the last one used
}

// signingKey is derived from a secret for one day, region and service.
type signingKey struct {
	date, region, service string
	key                   []byte
}

// maxCached bounds the cache; the leases of one gateway fit.
const maxCached = 4096

func (k *tokenCache) get(text string) *Verified {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.tokens[text]
}

// put caches a token. It must be authentic.
func (k *tokenCache) put(text string, t *Verified) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tokens == nil || len(k.tokens) >= maxCached {
		k.tokens = map[string]*Verified{}
	}
	k.tokens[strings.Clone(text)] = t
}

// SigningKey returns the key that signs the requests of a day. It is shared: do not modify it.
func (t *Verified) SigningKey(date, region, service string) []byte {
	if s := t.signing.Load(); s != nil && s.date == date && s.region == region && s.service == service {
		return s.key
	}
	key := []byte("AWS4" + t.secret)
	for _, part := range []string{date, region, service, "aws4_request"} {
		key = hmacOf(key, []byte(part))
	}
	t.signing.Store(&signingKey{strings.Clone(date), strings.Clone(region), strings.Clone(service), key})
	return key
}

// Session is the content of a session token.
type Session struct {
	Principal string // to whom it was issued; "": no named principal
	Resource  string
	Token     fence.Token
	Expires   time.Time
	Terms     Terms
}

func hmacOf(key, message []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(message)
	return h.Sum(nil)
}

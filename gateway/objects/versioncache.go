package objects

import (
	"strings"
	"sync"
	"time"
)

// memory caches versions in write-once buckets. An existing key has the same version until its retention ends, for
// every client and even while PostgreSQL is away. The absence of a key is never cached.
//
// The cache is valid while PostgreSQL keeps what it acknowledged: it belongs to one history of one server, as
// fence.identity names it, and another one empties it.
type memory struct {
	mu       sync.RWMutex
	identity string
	reported bool // saw has reported which PostgreSQL is in use; from then on look-ups do not decide it
	found    map[[2]string]cachedVersion
}

type cachedVersion struct {
	version Stored
	until   time.Time
}

const (
	maxCached      = 1 << 16 // versions; beyond, a new one evicts another
	maxCachedBlobs = 8       // of a version; one with more is looked up each time
	maxCachedBytes = 1 << 10 // of its name, metadata and tags; likewise
)

// recall returns the current version of a key, if cached.
func (m *memory) recall(bucket, key string) (Stored, bool) {
	m.mu.RLock()
	r, found := m.found[[2]string{bucket, key}]
	m.mu.RUnlock()
	if !found {
		return Stored{}, false
	}
	// Both clocks: the monotonic one stops while the machine sleeps, and the wall clock may be set back.
	if now := time.Now(); !now.Before(r.until) || !now.Round(0).Before(r.until.Round(0)) {
		m.forget(bucket, key)
		return Stored{}, false
	}
	return r.version, true
}

// remember caches the result of a look-up that began at began. A thousandth of the remaining time is a margin for clock
// errors.
func (m *memory) remember(bucket, key string, c current, began time.Time) {
	if !c.key || c.left <= 0 || c.identity == "" || len(c.Blobs) > maxCachedBlobs || weight(bucket, key, c.Attributes) > maxCachedBytes {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.identity == "" && !m.reported {
		m.identity, m.found = c.identity, map[[2]string]cachedVersion{}
	}
	if m.identity != c.identity { // a late answer of the previous one, or an early one of the next
		m.identity, m.reported, m.found = "", true, nil
		return
	}
	if len(m.found) >= maxCached {
		for one := range m.found {
			delete(m.found, one)
			break
		}
	}
	at := [2]string{strings.Clone(bucket), strings.Clone(key)} // copies, because the request's buffer is reused
	m.found[at] = cachedVersion{version: c.Stored, until: began.Add(c.left - c.left/1000)}
}

// weight is roughly the size of a cached version without its blobs, in bytes.
func weight(bucket, key string, a Attributes) int {
	n := len(bucket) + len(key) + len(a.ContentType) + len(a.ContentEncoding) + len(a.ContentDisposition) + len(a.ContentLanguage) +
		len(a.CacheControl) + len(a.Expires)
	for _, pairs := range []map[string]string{a.Metadata, a.Tags} {
		for name, value := range pairs {
			n += len(name) + len(value)
		}
	}
	return n
}

func (m *memory) forget(bucket, key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.found, [2]string{bucket, key})
}

// saw reports which PostgreSQL is in use; "" for one that may have lost acknowledged writes.
func (m *memory) saw(identity string) {
	m.mu.RLock()
	same := m.identity == identity && identity != ""
	m.mu.RUnlock()
	if same {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reported = true; m.identity != identity || identity == "" {
		m.identity, m.found = identity, map[[2]string]cachedVersion{}
	}
}

package objects

import (
	"strings"
	"sync"
	"time"
)

// memory is what was found in buckets whose objects are written once. A key that is
// there stands for the same version until its retention ends, for every client and
// whether or not PostgreSQL can be asked. That a key is absent is never remembered.
//
// It holds as long as PostgreSQL keeps what it acknowledged: it belongs to one
// history of one server, as fence.identity names it, and another one empties it.
type memory struct {
	mu       sync.RWMutex
	identity string
	told     bool // by others than answers which PostgreSQL is there: from then on they alone say so
	found    map[[2]string]remembered
}

type remembered struct {
	version Stored
	until   time.Time
}

const (
	maxRemembered      = 1 << 16 // versions; then one gives way to the next
	maxRememberedBlobs = 8       // of a version; one of more parts is looked up each time
	maxRememberedBytes = 1 << 10 // of its name, metadata and tags; likewise
)

// retained is what a look-up says of a version's retention.
type retained struct {
	left     time.Duration // from the answer on; 0: it has ended, or there is none
	identity string        // of the PostgreSQL that answered
}

// recall is the current version of a key, if it is remembered.
func (m *memory) recall(bucket, key string) (Stored, bool) {
	m.mu.RLock()
	r, found := m.found[[2]string{bucket, key}]
	m.mu.RUnlock()
	if !found {
		return Stored{}, false
	}
	// Both clocks: the monotonic one stands still while the machine sleeps, the other may be set back.
	if now := time.Now(); !now.Before(r.until) || !now.Round(0).Before(r.until.Round(0)) {
		m.forget(bucket, key)
		return Stored{}, false
	}
	return r.version, true
}

// remember takes note of what a look-up found that began then. A thousandth of the
// time that is left is for clocks that go wrong.
func (m *memory) remember(bucket, key string, c current, began time.Time) {
	if !c.key || c.left <= 0 || c.identity == "" || len(c.Blobs) > maxRememberedBlobs || weight(bucket, key, c.Attributes) > maxRememberedBytes {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.identity == "" && !m.told {
		m.identity, m.found = c.identity, map[[2]string]remembered{}
	}
	if m.identity != c.identity { // a late answer of the one before, or an early one of the next
		m.identity, m.told, m.found = "", true, nil
		return
	}
	if len(m.found) >= maxRemembered {
		for one := range m.found {
			delete(m.found, one)
			break
		}
	}
	at := [2]string{strings.Clone(bucket), strings.Clone(key)} // the request's, which end with it
	m.found[at] = remembered{version: c.Stored, until: began.Add(c.left - c.left/1000)}
}

// weight is about how many bytes are remembered of a version beside its blobs.
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

// saw says which PostgreSQL is there; "" one that may have lost what it acknowledged.
func (m *memory) saw(identity string) {
	m.mu.RLock()
	same := m.identity == identity && identity != ""
	m.mu.RUnlock()
	if same {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.told = true; m.identity != identity || identity == "" {
		m.identity, m.found = identity, map[[2]string]remembered{}
	}
}

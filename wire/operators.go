package wire

import (
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Resource is the state of a resource: its fence and its lock.
type Resource struct {
	fence.Record

	Locked *bool `json:"locked"` // null: too few of the lock's servers answered
	Lock   *Lock `json:"lock"`
}

// Lock is the state of a resource's lock.
type Lock struct {
	Holder  string       `json:"holder"`  // "": none
	Token   *fence.Token `json:"token"`   // null: none was issued
	TTLMS   *int64       `json:"ttl_ms"`  // null: it never ends, or there is no holder
	Waiters int          `json:"waiters"` // processes that wait in the queue
	Servers []LockServer `json:"servers"`
}

// LockServer is one server's answer about a resource.
type LockServer struct {
	Name    string       `json:"name"`
	Locked  bool         `json:"locked"`
	Holder  string       `json:"holder"`
	Token   *fence.Token `json:"token"` // null: none was issued, or it did not answer
	TTLMS   *int64       `json:"ttl_ms"`
	Waiters int          `json:"waiters"`
	Error   *string      `json:"error"` // null: it answered
}

// The states of a resource in a list.
const (
	StateLive     = "live"     // its lease is held
	StateReleased = "released" // its last lease was released
	StateExpired  = "expired"  // its last lease expired
	StateRevoked  = "revoked"  // it was revoked; holder says by whom
	StateUnknown  = "unknown"  // too few of the lock's servers answered
	StateNever    = "never"    // no fence is recorded: it was never held, or the fence was retired; not used in lists
)

// StateOf is the state of a resource that has a fence. locked says whether its lock is held; nil: unknown.
func StateOf(r fence.Record, locked *bool) string {
	switch {
	case locked != nil && *locked:
		return StateLive
	case r.EndedAt != nil:
		return StateReleased
	case r.Revoked():
		return StateRevoked
	case locked == nil:
		return StateUnknown
	}
	return StateExpired
}

// Listed is a resource in a list.
type Listed struct {
	fence.Record

	State   string `json:"state"`   // "live", "released", "expired", "revoked" or "unknown" (too few of the lock's servers answered)
	LeftMS  *int64 `json:"left_ms"` // until its lease ends unless it is renewed; null: it has no holder, never ends, or the time is unknown
	Waiters int    `json:"waiters"` // processes that wait in the queue
}

// Resources is a page of resources.
type Resources struct {
	Resources []Listed `json:"resources"`
	Next      *string  `json:"next"` // the next page's after; null: this is the last page
}

// RevokeRequest takes a resource from its holder.
type RevokeRequest struct {
	Holder string `json:"holder,omitempty"` // who revokes and why, for display; at most 200 bytes
}

// Revoked has the token that a fence was raised to.
type Revoked struct {
	Resource string      `json:"resource"`
	Token    fence.Token `json:"token"`
}

// Bucket is a bucket and its settings.
type Bucket struct {
	Bucket    string       `json:"bucket"`
	Rule      string       `json:"rule"`       // which resource a write of a key needs: "bucket", "prefix:N", "key", one of them behind "monotone:", "monotone" or "none"
	Keep      string       `json:"keep"`       // which noncurrent versions it keeps: "none", a number of them, a duration, or "all"
	WriteOnce string       `json:"write_once"` // how long an object can't change after it was written; "none": it can always change
	Prefixes  []PrefixRule `json:"prefixes"`
	CreatedAt time.Time    `json:"created_at"`
}

// PrefixRule is the rule of the keys that begin with a prefix. The longest matching prefix applies.
type PrefixRule struct {
	Prefix string `json:"prefix"` // of keys; the longest match applies
	Rule   string `json:"rule"`   // as for a bucket
}

// Buckets is a page of buckets.
type Buckets struct {
	Buckets []Bucket `json:"buckets"`
	Next    *string  `json:"next"` // the next page's after; null: this is the last page
}

// BucketRequest creates a bucket, or changes the settings of one.
type BucketRequest struct {
	Keep      string `json:"keep,omitempty"`       // absent: unchanged; "none" for a new bucket
	Rule      string `json:"rule,omitempty"`       // absent: unchanged; a new bucket needs one
	WriteOnce string `json:"write_once,omitempty"` // absent: unchanged; "none" for a new bucket
}

// Session is an open session of the PostgreSQL port. It holds no secret.
type Session struct {
	ID         string       `json:"id"`
	Client     string       `json:"client"` // address
	User       string       `json:"user"`
	Database   string       `json:"database"`
	PID        *int64       `json:"pid"`              // of its backend; null: unknown
	App        string       `json:"application_name"` // of its startup packet
	Resource   *string      `json:"resource"`         // null: no grant came with the connection
	Token      *fence.Token `json:"token"`            // null: unknown
	State      string       `json:"state"`            // "active", "idle" or "idle in transaction"
	Since      time.Time    `json:"since"`
	Statement  *int64       `json:"statement_ms"` // how long it has been active; null: it is not
	FromClient int64        `json:"bytes_from_client"`
	ToClient   int64        `json:"bytes_to_client"`
}

// Sessions are the sessions of one gateway.
type Sessions struct {
	Sessions []Session `json:"sessions"`
}

// EndRequest ends a session.
type EndRequest struct {
	By string `json:"by,omitempty"` // who ends it and why, for the log; at most 200 bytes
}

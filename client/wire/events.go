package wire

import (
	"time"

	"github.com/fencegate/fencegate/fence"
)

// The kinds of events. There may be more: a reader passes over those that it does not know.
const (
	EventRefused  = "refused"    // by the fence: code says why
	EventAcquired = "acquired"   // recorded is the lease's token
	EventReleased = "released"   // presented is the lease's token
	EventLost     = "lost"       // a lease that could not be renewed; presented is its token
	EventEnded    = "ended"      // an open session of the PostgreSQL port, by the gateway; code says why
	EventRevoked  = "revoked"    // recorded is the token that nobody has
	EventExpired  = "expired"    // a lease of this gateway ran out, and nobody has taken its resource yet; presented is its token
	EventOver     = "superseded" // the fence was armed over a lease of this gateway that was not released: presented is its token, recorded the new one
	EventMissed   = "missed"     // the reader was slow, or comes from another run: events were dropped here
)

// The kinds of events that are about no resource.
const (
	EventAdmitted    = "admitted"    // node grants leases, after it did not
	EventQuarantined = "quarantined" // node lost its data or its run, and grants nothing
	EventAway        = "away"        // node does not answer
	EventSwept       = "swept"       // deleted blobs are gone that nobody will ask for
)

// The surfaces of a gateway.
const (
	SurfacePG    = "pg"    // the PostgreSQL port
	SurfaceSQL   = "sql"   // /v1/sql
	SurfaceCheck = "check" // /v1/check
	SurfaceS3    = "s3"
	SurfaceAPI   = "api" // the rest of the HTTP API

	SurfaceLease = "lease" // for /readyz and its metric: leases, and so all that the API needs
)

// Event is something that happened at one gateway. It holds no secret and nothing of a
// row. What is not known is absent.
type Event struct {
	ID        string      `json:"id,omitempty"` // for Last-Event-ID
	Time      time.Time   `json:"time"`
	Kind      string      `json:"kind"`              // "refused", "acquired", "released", "lost", "expired", "superseded", "ended", "revoked", "admitted", "quarantined", "away", "swept" or "missed"; there may be more
	Surface   string      `json:"surface,omitempty"` // "pg", "sql", "check", "s3" or "api"
	Code      string      `json:"code,omitempty"`    // SQLSTATE of a refusal or an end
	Login     string      `json:"login,omitempty"`
	Client    string      `json:"client,omitempty"`           // address
	App       string      `json:"application_name,omitempty"` // or the User-Agent
	Resource  string      `json:"resource,omitempty"`         // of the grant
	Needed    string      `json:"needed,omitempty"`           // the resource that the write needs, where the grant is for another
	Presented fence.Token `json:"presented,omitempty"`
	Recorded  fence.Token `json:"recorded,omitempty"`
	Statement string      `json:"statement,omitempty"` // its kind: INSERT, PutObject, …
	Table     string      `json:"table,omitempty"`     // or the bucket
	Holder    string      `json:"holder,omitempty"`
	Node      string      `json:"node,omitempty"`    // a server of the lock
	Deleted   int         `json:"deleted,omitempty"` // how many blobs
	Missed    uint64      `json:"missed,omitempty"`  // how many events were dropped; absent: not known
}

// maxApp is how much of an application's name people are shown, in characters.
const maxApp = 40

// ShortApp is App for people: SDKs send User-Agents of hundreds of characters.
func (e Event) ShortApp() string {
	runes := []rune(e.App)
	if len(runes) <= maxApp {
		return e.App
	}
	return string(runes[:maxApp-1]) + "…"
}

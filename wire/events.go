package wire

import (
	"time"

	"github.com/fencegate/fencegate/fence"
)

// The kinds of events. New kinds may be added: a reader skips those that it does not know.
const (
	EventRefused  = "refused"    // the fence refused a write: code says why
	EventAcquired = "acquired"   // recorded is the lease's token
	EventReleased = "released"   // presented is the lease's token
	EventLost     = "lost"       // a lease that could not be renewed; presented is its token
	EventEnded    = "ended"      // the gateway ended an open session of the PostgreSQL port; code says why
	EventRevoked  = "revoked"    // recorded is the token of the revocation
	EventExpired  = "expired"    // a lease of this gateway expired, and its resource has no new holder yet; presented is its token
	EventOver     = "superseded" // the fence was armed over a lease of this gateway that ran out unreleased: presented is its token, recorded the new one
	EventMissed   = "missed"     // the reader was slow, or continues from another run: events were dropped here
)

// The kinds of events without a resource.
const (
	EventAdmitted    = "admitted"    // node began to grant leases
	EventQuarantined = "quarantined" // node lost its data or was restarted, and grants nothing
	EventAway        = "away"        // node does not answer
	EventSwept       = "swept"       // the sweep removed deleted blobs that are no longer needed
)

// The surfaces of a gateway.
const (
	SurfacePG    = "pg"    // the PostgreSQL port
	SurfaceSQL   = "sql"   // /v1/sql
	SurfaceCheck = "check" // /v1/check
	SurfaceS3    = "s3"
	SurfaceAPI   = "api" // the rest of the HTTP API

	SurfaceLease = "lease" // for /readyz and its metric: leases, and so everything that the API needs
)

// Event is something that happened at one gateway. It contains no secret and no row data. Unknown fields are absent.
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
	Needed    string      `json:"needed,omitempty"`           // the resource that the write needs, if the grant is for another
	Presented fence.Token `json:"presented,omitempty"`
	Recorded  fence.Token `json:"recorded,omitempty"`
	Statement string      `json:"statement,omitempty"` // its kind: INSERT, PutObject, …
	Table     string      `json:"table,omitempty"`     // or the bucket
	Holder    string      `json:"holder,omitempty"`
	Node      string      `json:"node,omitempty"`    // a lock node
	Deleted   int         `json:"deleted,omitempty"` // how many blobs
	Missed    uint64      `json:"missed,omitempty"`  // how many events were dropped; absent: unknown
}

// maxApp is the displayed length of an application's name, in characters.
const maxApp = 40

// ShortApp is App shortened for display: SDKs send User-Agents of hundreds of characters.
func (e Event) ShortApp() string {
	runes := []rune(e.App)
	if len(runes) <= maxApp {
		return e.App
	}
	return string(runes[:maxApp-1]) + "…"
}

package wire

import (
	"time"

	"github.com/fencegate/fencegate/fence"
)

// IdempotencyKey is the header that marks a request for leases as a possible repeat of one whose answer was lost: 16
// to 128 visible characters, new for each acquisition.
const IdempotencyKey = "Idempotency-Key"

// AcquireRequest asks for a lease: POST /v1/leases.
type AcquireRequest struct {
	Holder   string  `json:"holder,omitempty"` // display name; at most 200 bytes
	Resource string  `json:"resource"`         // 1 to 512 bytes of UTF-8, such as "orders/1001": no control characters, no '*', no sealed token
	TTL      *string `json:"ttl,omitempty"`    // such as "30s"; absent: the gateway's default
	Wait     *string `json:"wait,omitempty"`   // how long to wait while another holds it or too few nodes answer; absent: not at all
}

// Lease is what was acquired.
type Lease struct {
	Resource string      `json:"resource"`
	Token    fence.Token `json:"token"`
	Grant    string      `json:"grant"`  // what a writer presents: token, dot, seal; a secret
	Handle   string      `json:"handle"` // to renew and release it: a secret
	TTLMS    int64       `json:"ttl_ms"`
	Timing
}

// AcquireAllRequest asks for the leases of several resources, all or none:
// POST /v1/leases/all.
type AcquireAllRequest struct {
	Holder    string   `json:"holder,omitempty"` // display name; at most 200 bytes
	Resources []string `json:"resources"`        // 1 to 100, each once
	TTL       *string  `json:"ttl,omitempty"`    // of each; absent: the gateway's default
	Wait      *string  `json:"wait,omitempty"`   // how long to wait while others hold some of them; absent: not at all
}

// Leases are what was acquired, in the order of the request.
type Leases struct {
	Leases []Lease `json:"leases"` // in the order of the request
}

// Timing says when a lease ends, without comparing clocks: the request's sending time + elapsed + valid is never
// later than the true end, because the request was sent before the gateway began to count.
type Timing struct {
	// ElapsedMS runs from the request's arrival to the writing of this answer, or to the lease's end if that was sooner.
	// The time of sending + elapsed_ms + valid_ms is never later than the lease's end.
	ElapsedMS int64 `json:"elapsed_ms"`
	ValidMS   int64 `json:"valid_ms"` // from the writing of this answer to the lease's end
	// Final says that no renewal makes the lease last longer: it has reached the gateway's limit (--max-lease).
	Final bool `json:"final,omitempty"`
}

// RenewRequest extends a lease: POST /v1/leases/renew.
type RenewRequest struct {
	Handle string  `json:"handle"`
	TTL    *string `json:"ttl,omitempty"` // from now; absent: the gateway's default
}

// Renewed is an extended lease.
type Renewed struct {
	Resource string      `json:"resource"`
	Token    fence.Token `json:"token"`
	Timing
}

// HandleRequest names a lease: POST /v1/leases/release.
type HandleRequest struct {
	Handle string `json:"handle"` // from the lease
}

// CredentialsRequest asks for S3 credentials of a lease: POST /v1/leases/credentials.
type CredentialsRequest struct {
	Handle     string `json:"handle"`
	Refreshing bool   `json:"refreshing,omitempty"` // they expire at the lease's current deadline; after a renewal, ask again. Absent: they last for a day, and write while the lease is held
	OwnKeys    bool   `json:"own_keys,omitempty"`   // they read only the keys of the lease's resource
	ReadOnly   bool   `json:"read_only,omitempty"`  // they write nothing
}

// Credentials are temporary S3 credentials that are bound to a lease's grant. Any S3 client can use them.
type Credentials struct {
	AccessKeyID     string    `json:"access_key_id"`
	SecretAccessKey string    `json:"secret_access_key"`
	SessionToken    string    `json:"session_token"`
	ExpiresAt       time.Time `json:"expires_at"` // by the gateway's clock
	ValidMS         int64     `json:"valid_ms"`   // from the writing of this answer to their end: the time of sending + valid_ms is never later, whatever the clocks show
	EndpointURL     string    `json:"endpoint_url"`
	Region          string    `json:"region"`
}

// Endpoints has the addresses of the gateway's other ports.
type Endpoints struct {
	Postgres *PostgresEndpoint `json:"pg"` // nil: this gateway has no such port
	S3       *S3Endpoint       `json:"s3"` // likewise
	Version  string            `json:"version"`
}

// PostgresEndpoint is the PostgreSQL port.
type PostgresEndpoint struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Database string `json:"database"`
}

// S3Endpoint is the S3 port.
type S3Endpoint struct {
	URL    string `json:"url"`
	Region string `json:"region"`
}

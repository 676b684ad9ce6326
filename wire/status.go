package wire

import "time"

// Status is a gateway's status: GET /v1/status. A count is null if it is unknown or the caller may not see it.
type Status struct {
	Version    string         `json:"version"`
	StartedAt  time.Time      `json:"started_at"`
	UptimeMS   int64          `json:"uptime_ms"`
	Ready      bool           `json:"ready"`
	Postgres   PostgresStatus `json:"postgresql"`
	Lock       LockStatus     `json:"lock"`
	HeldLeases *int64         `json:"held"`     // leases that this gateway granted or extended and that are not over
	Waiters    *int64         `json:"waiters"`  // callers of this gateway that wait for a lease
	Sessions   *int64         `json:"sessions"` // open on its PostgreSQL port; null also if it has none
	Objects    *int64         `json:"objects"`  // an estimate above 10,000; null also if it has no S3 port
	Keys       []KeyStatus    `json:"keys"`     // its master keys, the current one first; empty unless the caller may inspect everything
}

// KeyStatus identifies a master key without revealing it.
type KeyStatus struct {
	ID          string `json:"id"`
	Fingerprint string `json:"fingerprint"` // 16 hexadecimal digits, derived from the key
}

// PostgresStatus is the state of PostgreSQL as this gateway sees it.
type PostgresStatus struct {
	State    string `json:"state"`    // "ok", or "away"
	Detail   string `json:"detail"`   // why it can't serve; "": it can
	Identity string `json:"identity"` // identifies the cluster and its history; "": unknown
}

// LockStatus is the state of the source of leases.
type LockStatus struct {
	Kind   string       `json:"kind"`   // "redis", "postgresql" or "other"
	State  string       `json:"state"`  // "ok", or "away"
	Detail string       `json:"detail"` // why no leases are granted, or what is missing; "": nothing
	Nodes  []NodeStatus `json:"nodes"`  // Redis nodes; empty for other kinds

	BestEffort bool `json:"best_effort,omitempty"` // lost nodes are admitted without a quarantine
}

// Health is the answer of /healthz.
type Health struct {
	Status string `json:"status"` // "ok"
}

// Readiness is the answer of /readyz if the gateway can serve. The keys are parts.
type Readiness struct {
	Status   string            `json:"status"`             // "ready"
	Parts    map[string]string `json:"parts"`              // "ok" for each
	Degraded map[string]string `json:"degraded,omitempty"` // what is missing of a part that still serves
	Notes    map[string]string `json:"notes,omitempty"`    // further information about a part
}

// The states of a part, and of a node.
const (
	NodeAdmitted    = "admitted"
	NodeQuarantined = "quarantined"
	NodeOut         = "not_admitted"
	PartOK          = "ok"
	PartAway        = "away" // of a node, too
)

// NodeStatus is a Redis node.
type NodeStatus struct {
	Name         string `json:"name"`
	State        string `json:"state"`             // "admitted", "quarantined", "not_admitted" or "away"
	QuarantineMS int64  `json:"quarantine_ms"`     // how long its quarantine lasts
	Warning      string `json:"warning,omitempty"` // what an operator should change
}

package wire

import "github.com/fencegate/fencegate/fence"

// Codes of problems that are not refusals of the fence. The code of a refusal is its SQLSTATE, see fence.Codes.
const (
	CodeConflict         = "conflict"
	CodeDenied           = "denied"
	CodeHeld             = "held"
	CodeInternal         = "internal"
	CodeInvalid          = "invalid_input"
	CodeKeyReused        = "key_reused"
	CodeLeaseLost        = "lease_lost"
	CodeMethodNotAllowed = "method_not_allowed"
	CodeNotFound         = "not_found"
	CodeNotImplemented   = "not_implemented"
	CodeRateLimited      = "rate_limited"
	CodeSQLError         = "sql_error"
	CodeTooLarge         = "too_large"
	CodeUnauthorized     = "unauthorized"
	CodeUnavailable      = "unavailable"
	CodeUnknown          = "unknown"
)

// Parts that may be unavailable.
const (
	PartGateway  = "gateway" // it is stopping
	PartPostgres = "postgresql"
	PartRedis    = "redis"
)

// ProblemType is the prefix of every problem's type; a word follows.
const ProblemType = "urn:fencegate:problem:"

// Problem is the answer to a failed request (RFC 9457, application/problem+json).
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"` // SQLSTATE of a refusal by the fence, or a word
	Hint   string `json:"hint,omitempty"`

	Field        string       `json:"field,omitempty"`          // of malformed input
	Part         string       `json:"part,omitempty"`           // the part that is unavailable
	Resource     string       `json:"resource,omitempty"`       // of the refusal
	Needed       string       `json:"needed,omitempty"`         // resource that the write needs
	Presented    *fence.Token `json:"presented,omitempty"`      // token
	Recorded     *fence.Token `json:"recorded,omitempty"`       // token
	Holder       string       `json:"holder,omitempty"`         // of a held resource; for display
	RetryAfterMS int64        `json:"retry_after_ms,omitempty"` // when a held resource may be free, or a retry may succeed
	RequestID    string       `json:"request_id,omitempty"`     // as in the header X-Request-Id, and in the gateway's log
	SQLState     string       `json:"sqlstate,omitempty"`
	SQLDetail    string       `json:"sql_detail,omitempty"`
	Statement    *int         `json:"statement,omitempty"` // index, from 0, of the statement that failed
	Position     int          `json:"position,omitempty"`  // in its text, in characters from 1
}

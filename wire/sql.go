package wire

import (
	"encoding/json"

	"github.com/fencegate/fencegate/fence"
)

// SQLRequest runs statements under a grant, in one transaction: POST /v1/sql.
type SQLRequest struct {
	Statements []Statement `json:"statements"` // 1 to 100
}

// Statement is one SQL command and its arguments, as they stood in the request.
type Statement struct {
	SQL string `json:"sql"` // one command, with $1, $2, … for arguments
	// Args are its arguments. null, booleans, numbers and strings are sent as text, which PostgreSQL reads as the
	// parameter's type; objects as jsonb; arrays as a PostgreSQL array if the parameter is one, else as JSON.
	Args []json.RawMessage `json:"args,omitempty"`
}

// SQLAnswer has one result for each statement.
type SQLAnswer struct {
	Results []Result `json:"results"`
}

// Result is the result of one statement.
type Result struct {
	Columns []Column `json:"columns"`
	// Rows are one JSON array each. bool, int2, int4, oid and finite floats are JSON values; json and jsonb are
	// embedded; everything else, including int8 and numeric, is a string in PostgreSQL's text form.
	Rows         []json.RawMessage `json:"rows"`
	RowsAffected int64             `json:"rows_affected"`
	Command      string            `json:"command"` // PostgreSQL's command tag
}

// Column names one column of a result and its PostgreSQL type.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Checked is a grant that the fence accepted: the answer of POST /v1/check. A newer grant may
// supersede it before the answer is read.
type Checked struct {
	Resource string      `json:"resource"`
	Token    fence.Token `json:"token"`
	// Locked says whether the resource's lease is held. The fence accepts the grant of an expired lease until the
	// resource is acquired again. Absent: unknown.
	Locked *bool `json:"locked,omitempty"`
}

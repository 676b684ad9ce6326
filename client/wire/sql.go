package wire

import "encoding/json"

// SQLRequest runs statements under a grant, in one transaction: POST /v1/sql.
type SQLRequest struct {
	Statements []Statement `json:"statements"`
}

// Statement is one SQL command and its arguments, as they stood in the request.
type Statement struct {
	SQL  string            `json:"sql"`
	Args []json.RawMessage `json:"args"`
}

// SQLAnswer has one result for each statement.
type SQLAnswer struct {
	Results []Result `json:"results"`
}

// Result is what one statement gave.
type Result struct {
	Columns      []Column          `json:"columns"`
	Rows         []json.RawMessage `json:"rows"` // one JSON array each
	RowsAffected int64             `json:"rows_affected"`
	Command      string            `json:"command"` // PostgreSQL's command tag
}

// Column names one column of a result and its PostgreSQL type.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Package client is a client process of a run.
package client

import "time"

// Config is what a client process is told, as one line of JSON on its standard input. Every address leads through a
// relay of this client's own.
type Config struct {
	Number    int           `json:"number"`
	Life      int           `json:"life"` // which process of this number it is: 0 or 1 is the first
	Seed      uint64        `json:"seed"`
	History   string        `json:"history"` // file that it appends to
	Dir       string        `json:"dir"`     // scratch folder of its own
	Workers   int           `json:"workers"` // that work side by side
	Surfaces  []string      `json:"surfaces"`
	MaxTTL    time.Duration `json:"max_ttl"` // leases last from 400ms to this
	Redis     []string      `json:"redis"`
	Prefix    string        `json:"prefix"`     // of the keys in Redis: the gateways' own
	WriterURL string        `json:"writer_url"` // PostgreSQL itself, primary and standby, target_session_attrs=read-write, as a login of fence_writer
	FenceURL  string        `json:"fence_url"`  // the same as a login of fence_gateway: for the library's Armer
	Gateways  []Gateway     `json:"gateways"`
	Token     string        `json:"token"`  // bearer token of the HTTP API
	Bucket    string        `json:"bucket"` // its rule: the resource of BUCKET/a/b is BUCKET/a
	Program   string        `json:"program"`
	Python    string        `json:"python"` // an interpreter that has boto3; "": none
	PSQL      string        `json:"psql"`   // "": none
}

// Gateway is one gateway, as this client reaches it.
type Gateway struct {
	API   string `json:"api"`    // http://127.0.0.1:…
	PGURL string `json:"pg_url"` // through the PostgreSQL port, as the login that writes
	S3    string `json:"s3"`     // http://127.0.0.1:…
}

// Order is a line of JSON on a client's standard input, after the Config. A client answers each with a Report. When its
// input ends, so does the client.
type Order struct {
	Do        string   `json:"do"` // Work or Rest
	Round     int      `json:"round,omitempty"`
	Resources []string `json:"resources,omitempty"` // what to work on; their rows are there, with the value ""
}

// What an Order may ask for.
const (
	// Work begins: acquire, read, compute, pause, write, release, again and again. Answered at once.
	Work = "work"
	// Rest ends the work: what is under way is finished and every lease released or left to its TTL. Zombies of before
	// may stay; they write before the rest is answered.
	Rest = "rest"
)

// Report answers an Order, as a line of JSON on standard output.
type Report struct {
	Done       string         `json:"done"`
	Calls      int            `json:"calls"`      // operations since the beginning
	Counts     map[string]int `json:"counts"`     // "surface action outcome" → how many
	Goroutines int            `json:"goroutines"` // while at rest
	Error      string         `json:"error,omitempty"`
}

// Surfaces are the ways to acquire, read and write.
var Surfaces = []string{
	"library",     // package lock with a pgfence Armer, and pgfence.InTx
	"conn-lease",  // a lease in the connection string of the PostgreSQL port
	"http-port",   // a lease by HTTP, whose grant goes through the PostgreSQL port
	"http-direct", // the same, to PostgreSQL itself
	"http-sql",    // the same, by /v1/sql
	"s3-small",    // a lease by HTTP, and its S3 credentials
	"s3-large",
	"s3-multipart",
	"s3-slow",  // the body comes in pieces, around the end of the lease
	"s3-boto3", // Python's client, as it comes
	"publish",  // a row and a file in one transaction
	"run-psql", // fencegate run -- psql
}

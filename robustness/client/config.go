// Package client implements a client process of a run.
package client

import "time"

// Config is a client process's configuration, one line of JSON on its standard input. Every address leads through one
// of this client's own relays.
type Config struct {
	Number    int           `json:"number"`
	Life      int           `json:"life"` // which process of this client it is: 0 or 1 is the first
	Seed      uint64        `json:"seed"`
	History   string        `json:"history"` // its history file
	Dir       string        `json:"dir"`     // its own scratch folder
	Workers   int           `json:"workers"` // concurrent workers
	Surfaces  []string      `json:"surfaces"`
	MaxTTL    time.Duration `json:"max_ttl"` // the longest lease; the shortest is 400ms
	Redis     []string      `json:"redis"`
	Prefix    string        `json:"prefix"`     // of the keys in Redis, as the gateways use it
	WriterURL string        `json:"writer_url"` // primary and standby, target_session_attrs=read-write; in fence_writer
	FenceURL  string        `json:"fence_url"`  // the same in fence_gateway, for the library's Armer
	Gateways  []Gateway     `json:"gateways"`
	Balancer  *Gateway      `json:"balancer,omitempty"` // in front of the gateways; nil: none
	Token     string        `json:"token"`              // bearer token of the HTTP API
	Bucket    string        `json:"bucket"`             // its rule: the resource of BUCKET/a/b is BUCKET/a
	Program   string        `json:"program"`
	Python    string        `json:"python"` // an interpreter with boto3; "": none
	PSQL      string        `json:"psql"`   // "": none
}

// Gateway is one gateway, with this client's addresses for it.
type Gateway struct {
	API   string `json:"api"`    // http://127.0.0.1:…
	PGURL string `json:"pg_url"` // the PostgreSQL port, with the login that writes
	S3    string `json:"s3"`     // http://127.0.0.1:…
}

// Order is a line of JSON on a client's standard input, after the Config. A client answers each with a Report. When its
// input ends, the client exits.
type Order struct {
	Do        string   `json:"do"` // Work or Rest
	Round     int      `json:"round,omitempty"`
	Resources []string `json:"resources,omitempty"` // to work on; their rows exist, with the value ""
}

// The orders.
const (
	// Work starts the work: acquire, read, compute, pause, write, release, repeatedly. It is answered at once.
	Work = "work"
	// Rest ends the work: running calls finish, and every lease is released or left to its TTL. Older zombies may stay;
	// they write before the rest is answered.
	Rest = "rest"
)

// Report answers an Order, as a line of JSON on standard output.
type Report struct {
	Done       string         `json:"done"`
	Calls      int            `json:"calls"`      // operations so far
	Counts     map[string]int `json:"counts"`     // "surface action outcome" → how many
	Goroutines int            `json:"goroutines"` // while at rest
	Error      string         `json:"error,omitempty"`
}

// Surfaces are the ways to acquire, read and write.
var Surfaces = []string{
	"library",     // package lock with a pgfence Armer, and pgfence.InTx
	"http-port",   // a lease by HTTP, whose grant goes through the PostgreSQL port
	"http-direct", // the same, with PostgreSQL itself
	"http-sql",    // the same, with /v1/sql
	"s3-small",    // a lease by HTTP, with its S3 credentials
	"s3-large",
	"s3-multipart",
	"s3-slow",  // the body is sent in pieces, around the end of the lease
	"s3-boto3", // Python's client with its defaults
	"publish",  // a row and a file in one transaction
	"run-psql", // fencegate run -- psql
}

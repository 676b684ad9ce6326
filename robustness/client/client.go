// Package client implements a client process of a run: programs that acquire leases, read, compute, pause, write and go
// on too long, on every surface of the product. Each call is recorded in a history, before it is made and when it is
// answered. A program reports the product's answers and corrects nothing.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// Config is a client process's configuration, one line of JSON on its standard input. Every address leads through one
// of this client's own relays.
type Config struct {
	Number     int           `json:"number"`
	Life       int           `json:"life"` // which process of this client it is: 0 or 1 is the first
	Seed       uint64        `json:"seed"`
	History    string        `json:"history"` // its history file
	Dir        string        `json:"dir"`     // its own scratch folder
	Workers    int           `json:"workers"` // concurrent workers
	Surfaces   []string      `json:"surfaces"`
	MaxTTL     time.Duration `json:"max_ttl"`    // the longest lease; the shortest is 400ms
	Redis      []string      `json:"redis"`      // the library's nodes; none: its leases are PostgreSQL's
	Prefix     string        `json:"prefix"`     // of the keys in Redis, as the gateways use it
	WriterURL  string        `json:"writer_url"` // primary and standby, target_session_attrs=read-write; in fence_writer
	FenceURL   string        `json:"fence_url"`  // the same in fence_gateway, for the library's leases and fences
	Gateways   []Gateway     `json:"gateways"`
	Balancer   *Gateway      `json:"balancer,omitempty"` // in front of the gateways, and the last of them; nil: none
	Token      string        `json:"token"`              // bearer token of the HTTP API
	Bucket     string        `json:"bucket"`             // its rule: the resource of BUCKET/a/b is BUCKET/a
	OnceBucket string        `json:"once_bucket"`        // with the same rule, whose objects are written once
	Program    string        `json:"program"`
	Python     string        `json:"python"` // an interpreter with boto3; "": none
	PSQL       string        `json:"psql"`   // "": none
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

// Run runs a client process: it reads its Config and Orders from in, and answers each Order with a Report on out. When
// in ends, it finishes the running calls and returns; when ctx ends, so does the work.
func Run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	read, write := json.NewDecoder(in), json.NewEncoder(out)
	var cfg Config
	if err := read.Decode(&cfg); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	p, err := start(cfg, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for {
		var order Order
		switch err := read.Decode(&order); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("order: %w", err)
		}
		if err := write.Encode(p.obey(ctx, order)); err != nil {
			return err
		}
	}
}

// process is the state that the workers of a client share.
type process struct {
	cfg      Config
	env      *env
	history  *history.Writer
	surfaces map[string]*surface
	sequence atomic.Int64 // of IDs
	round    *round       // the current one; nil: at rest

	mu     sync.Mutex
	calls  int
	counts map[string]int
	tokens map[grantee]int64 // of this client's leases
}

// grantee is a holder by the name that the product shows, the ID of its acquisition, and one of its resources.
type grantee struct{ holder, resource string }

// start starts a process. Given surfaces are added to those of the Config.
func start(cfg Config, given []*surface) (p *process, err error) {
	p = &process{cfg: cfg, counts: map[string]int{}, tokens: map[grantee]int64{}, surfaces: map[string]*surface{}}
	made := p // a return of nil replaces p
	defer func() {
		if err != nil {
			err = errors.Join(err, made.close())
		}
	}()
	// A client that was killed continues after its last ID.
	before, err := (&history.Reader{Path: cfg.History}).Next()
	if err != nil {
		return nil, err
	}
	p.sequence.Store(int64(len(before)))
	if p.history, err = history.Append(cfg.History); err != nil {
		return nil, err
	}
	if len(cfg.Gateways) == 0 || cfg.Workers < 1 || cfg.MaxTTL < shortestTTL {
		return nil, fmt.Errorf("a client needs a gateway, a worker and leases of %v at least", shortestTTL)
	}
	// A restarted client acts differently in each of its lives.
	if p.env, err = newEnv(cfg, uint64(cfg.Life)<<32+uint64(len(before))); err != nil {
		return nil, err
	}
	for _, s := range given {
		p.surfaces[s.name], p.cfg.Surfaces = s, append(p.cfg.Surfaces, s.name)
	}
	for _, name := range cfg.Surfaces {
		i := slices.Index(Surfaces, name)
		if i < 0 {
			return nil, fmt.Errorf("no surface is called %q", name)
		}
		s := surfaces[i]
		if s.acquire, err = s.open(p.env); err != nil {
			return nil, fmt.Errorf("surface %s: %w", name, err)
		}
		p.surfaces[name] = &s
	}
	return p, nil
}

func (p *process) close() (err error) {
	p.rest()
	if p.env != nil {
		p.env.close()
	}
	if p.history != nil {
		err = p.history.Close()
	}
	return err
}

func (p *process) obey(ctx context.Context, order Order) Report {
	report := Report{Done: order.Do}
	switch order.Do {
	case Work:
		p.rest()
		if len(order.Resources) == 0 {
			report.Error = "no resources to work on"
			break
		}
		p.round = p.begin(ctx, order)
	case Rest:
		p.rest()
		p.env.hangUp() // idle connections would count as goroutines
	default:
		report.Error = fmt.Sprintf("no order is called %q", order.Do)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	report.Calls, report.Counts, report.Goroutines = p.calls, maps.Clone(p.counts), runtime.NumGoroutine()
	return report
}

func (p *process) rest() {
	if p.round == nil {
		return
	}
	close(p.round.stop)
	p.round.all.Wait()
	p.round = nil
	p.mu.Lock()
	clear(p.tokens)
	p.mu.Unlock()
}

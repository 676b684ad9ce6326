package client

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/robustness/history"
)

// surface is one way to acquire, read and write, as a user's program would. Only a call's context bounds its time. It is
// safe for concurrent use.
type surface struct {
	name      string
	registers registers // of a resource
	several   bool      // a lease may be of several resources, all or none
	once      bool      // its resources are those of the bucket whose objects are written once: a write is based on nothing
	open      func(*env) (acquire, error)

	acquire acquire // once it is open
}

type lessor func(e *env, ctx context.Context, a ask) (*term, error)

// acquire waits for the lease until ctx ends, or with ask.try only tries once.
type acquire func(ctx context.Context, a ask) (holding, error)

var surfaces = []surface{
	// Package lock with a pgfence Armer, or pglock; and pgfence.InTx.
	{name: "library", registers: row, open: openLibrary},
	// A lease by HTTP, whose grant goes through the PostgreSQL port, to PostgreSQL itself, or with /v1/sql.
	{name: "http-port", registers: row, open: over((*env).lease, throughPort)},
	{name: "http-direct", registers: row, open: over((*env).lease, direct)},
	{name: "http-sql", registers: row, open: over((*env).lease, bySQL)},
	// Leases of several resources by one request, all or none, and one transaction under all of them.
	{name: "http-all", registers: row, several: true, open: over((*env).lease, portOrDirect)},
	// A lease that is asked for again, with its Idempotency-Key: because an answer did not come, and to renew it.
	{name: "http-repeat", registers: row, open: over((*env).leaseAgain, balanced)},
	// A lease by HTTP, with its S3 credentials, and the AWS SDK or boto3 with their default settings.
	{name: "s3-small", registers: file, open: sending(small)},
	{name: "s3-large", registers: file, open: sending(large)},
	{name: "s3-multipart", registers: file, open: sending(multipart)},
	{name: "s3-slow", registers: file, open: sending(slow)}, // the body is sent in pieces, around the end of the lease
	{name: "s3-boto3", registers: file, open: openBoto3},
	{name: "s3-once", registers: fileOfTurn, once: true, open: sending(small)},
	// A row and a file in one transaction.
	{name: "publish", registers: rowAndFile, open: over((*env).lease, publishing)},
	// fencegate run -- psql, with one resource or several.
	{name: "run-psql", registers: row, open: openRun},
	{name: "run-several", registers: row, several: true, open: openRun},
}

// Surfaces are the ways to acquire, read and write.
var Surfaces = func() (names []string) {
	for _, s := range surfaces {
		names = append(names, s.name)
	}
	return names
}()

// registers returns the registers of a resource that a lease reads and writes.
type registers func(g fence.Grant) []string

const rowKind, fileKind = "row:", "file:"

func row(g fence.Grant) []string        { return []string{rowKind + g.Resource} }
func file(g fence.Grant) []string       { return []string{fileKind + g.Resource + "/data"} }
func rowAndFile(g fence.Grant) []string { return append(row(g), file(g)...) }

// fileOfTurn is a new object for each three leases: their first write makes it, and all others must be refused.
func fileOfTurn(g fence.Grant) []string {
	return []string{fmt.Sprint(fileKind, g.Resource, "/", g.Token/3)}
}

// ask is a request for a lease.
type ask struct {
	id        string // of the acquisition's Op; used as the holder's name if the product accepts one
	resources []string
	ttl       time.Duration
	try       bool
	whole     bool // read objects whole, in no other way
}

// wait is how long the product may wait: a second less than the caller does.
func (a ask) wait(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok || a.try {
		return 0
	}
	return max(time.Until(end)-time.Second, time.Millisecond).Truncate(time.Millisecond)
}

// holding is one lease, and how its holder reads and writes.
type holding struct {
	*term
	access
}

// term is one lease of one or several resources. Its functions may be called while its holder reads or writes.
type term struct {
	grants   []fence.Grant                                       // in the order of the resources; of psql without their seals
	deadline func() time.Time                                    // its first end for the holder; zero: it is renewed automatically while possible
	renew    func(ctx context.Context, i int) (time.Time, error) // of one grant; returns its end for the holder
	release  func(ctx context.Context) error
	slow     bool     // it can't be released during a write
	handles  []string // of the HTTP API
}

// access is how a holder reads and writes. One goroutine at a time uses it.
type access interface {
	// read returns the register's value, and what is wrong with it, if anything.
	read(ctx context.Context, register string) (saw, wrong string, err error)
	write(ctx context.Context, w write) error
	forget() // frees the client's resources; the lease is left to its TTL
}

// write sets registers, all or none.
type write struct {
	set []setting
	// pause is called where a program may be stopped: between statements, before COMMIT, in the middle of a body. It
	// lasts as long as the write's plan says, and ends early with ctx.
	pause func(ctx context.Context)
	// nap is pause for another program: it returns the length, or 0.
	nap func() time.Duration
	// noted records that a register was read in a transaction that began then (history.Now).
	noted func(began int64, s setting, saw string)
	dice  *dice // of the program; nil: it makes the simplest choices
}

// setting is a register, its new value, and the grant for it.
type setting struct {
	register, value string
	grant           fence.Grant
}

// failure is a surface's error with its outcome. Any other error of a mutating call is Unknown.
type failure struct {
	outcome history.Outcome
	code    string // ZF001, held, …
	holder  string // who has the lease, if known: the ID of an acquisition
	other   *term  // in place of the lease that ended, the product gave this one
	err     error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func failed(outcome history.Outcome, code string, err error) *failure {
	return &failure{outcome: outcome, code: code, err: err}
}

// env is what surfaces are made from. It is safe for concurrent use.
type env struct {
	cfg     Config
	dice    *dice
	http    *http.Client     // without a timeout: each call has its own
	apis    []*client.Client // of all gateways, each of which asks another one first
	again   []*client.Client // the same, or of the balancer
	writing *pgxpool.Pool
	s3      *http.Client
	closers []func()
}

func newEnv(cfg Config, life uint64) (e *env, err error) {
	e = &env{
		cfg: cfg, dice: newDice(cfg.Seed, uint64(cfg.Number)<<40|life),
		http: &http.Client{Transport: withKey{&http.Transport{MaxIdleConnsPerHost: 8, IdleConnTimeout: 5 * time.Second}}},
		s3:   &http.Client{Transport: paced{awshttp.NewBuildableClient().GetTransport()}}, // the SDK's default
	}
	if e.writing, err = e.pool(cfg.WriterURL, 8*cfg.Workers+8); err != nil {
		return e, err
	}
	for i := range cfg.Gateways {
		c, err := e.client(slices.Concat(cfg.Gateways[i:], cfg.Gateways[:i])...)
		if err != nil {
			return e, err
		}
		e.apis = append(e.apis, c)
	}
	e.again = e.apis
	if cfg.Balancer != nil {
		e.again = make([]*client.Client, 1)
		e.again[0], err = e.client(*cfg.Balancer)
	}
	return e, err
}

func (e *env) client(gateways ...Gateway) (*client.Client, error) {
	var urls []string
	for _, g := range gateways {
		urls = append(urls, g.API)
	}
	return client.New(client.Config{URL: strings.Join(urls, ","), Token: e.cfg.Token, HTTPClient: e.http})
}

// over makes a surface of a way to acquire and a way to read and write.
func over(lease lessor, open func(*env, ask, *term) access) func(*env) (acquire, error) {
	return func(e *env) (acquire, error) {
		return func(ctx context.Context, a ask) (holding, error) {
			t, err := lease(e, ctx, a)
			if err != nil {
				return holding{}, err
			}
			return holding{t, open(e, a, t)}, nil
		}, nil
	}
}

// gateway picks a gateway; half of the time the balancer, if there is one.
func (e *env) gateway() Gateway { return e.cfg.Gateways[e.pick()] }

// api is the HTTP API of any gateway: a handle is valid on all.
func (e *env) api() *client.Client { return e.apis[e.pick()] }

func (e *env) pick() int {
	all := len(e.cfg.Gateways)
	if e.cfg.Balancer != nil && e.dice.chance(2) {
		return all - 1
	}
	return e.dice.below(all)
}

// connectTimeout is for each host of an address that does not set one.
const connectTimeout = 2 * time.Second

// pool is configured as in docs/library.md. It connects on first use.
func (e *env) pool(address string, most int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, connectTimeout)
	config.MaxConns, config.MinConns, config.MaxConnIdleTime = int32(most), 0, 30*time.Second
	pgfence.Configure(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err == nil {
		e.closers = append(e.closers, pool.Close)
	}
	return pool, err
}

// hangUp closes idle connections.
func (e *env) hangUp() {
	e.http.CloseIdleConnections()
	e.s3.CloseIdleConnections()
}

func (e *env) close() {
	for _, closes := range slices.Backward(e.closers) {
		closes()
	}
	e.hangUp()
}

// dice are random numbers from a seed, safe for concurrent use. A nil dice shows 0 and has no chance.
type dice struct {
	mu   sync.Mutex
	rand *rand.Rand
}

func newDice(seed, stream uint64) *dice { return &dice{rand: rand.New(rand.NewPCG(seed, stream))} }

// more returns other dice, which follow from these.
func (d *dice) more() *dice { return newDice(uint64(d.below(1<<62)), 0) }

// below returns a number from 0 to n-1.
func (d *dice) below(n int) int {
	if d == nil {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rand.IntN(n)
}

// chance is true once in the given number of times.
func (d *dice) chance(of int) bool { return d != nil && d.below(of) == 0 }

// between returns a duration from lo to hi.
func (d *dice) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(d.below(int(hi-lo)))
}

package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
)

// settings configure a client of either kind.
type settings struct {
	Fenced   bool          `json:"fenced"`
	Resource string        `json:"resource"`
	Prefix   string        `json:"prefix"` // of keys
	Nodes    []string      `json:"nodes"`  // this client's addresses for them
	Writer   string        `json:"writer"`
	Gateway  string        `json:"gateway"` // for arming
	TTL      time.Duration `json:"ttl"`
	MaxTTL   time.Duration `json:"max_ttl"`
}

// client is a program that works under a lease. Only one goroutine may use it.
type client struct {
	lessor

	s    settings
	conn *pgx.Conn
	sent func() // called for each message to PostgreSQL; may be nil
}

// lessor is the lock's side of a client.
type lessor interface {
	acquire(ctx context.Context) error // waits
	try(ctx context.Context) error
	check(ctx context.Context) error // whether the lease is still held, according to the library
	left() time.Duration             // the remaining validity of the lease
	token() string                   // identifies this acquisition
	extend(ctx context.Context) error
	release(ctx context.Context) error
	write(ctx context.Context, conn *pgx.Conn, resource, value string) error
	close()
}

func connect(ctx context.Context, s settings) (*client, error) {
	c := &client{s: s}
	config, err := pgx.ParseConfig(s.Writer)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // one message for each statement
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return heard{conn, c}, err
	}
	if c.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return nil, err
	}
	c.lessor = plainRedlock(s)
	if s.Fenced {
		if c.lessor, err = fencegate(ctx, s); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *client) write(ctx context.Context, value string) error {
	return c.lessor.write(ctx, c.conn, c.s.Resource, value)
}

func (c *client) close() {
	c.lessor.close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.conn.Close(ctx) // the connection may be cut
}

// heard calls a function for each message that has been sent.
type heard struct {
	net.Conn

	c *client
}

func (h heard) Write(b []byte) (int, error) {
	n, err := h.Conn.Write(b)
	if h.c.sent != nil {
		h.c.sent()
	}
	return n, err
}

// redlock is a program that trusts a plain Redlock library.
type redlock struct {
	mutex *redsync.Mutex
	nodes []*redis.Client
}

func plainRedlock(s settings) *redlock {
	r := &redlock{}
	var pools []redsyncredis.Pool
	for _, addr := range s.Nodes {
		node := dialRedis(redis.Options{Addr: addr})
		r.nodes = append(r.nodes, node)
		pools = append(pools, goredis.NewPool(node))
	}
	var options []redsync.Option
	if s.TTL != 0 {
		options = append(options, redsync.WithExpiry(s.TTL))
	}
	r.mutex = redsync.New(pools...).NewMutex(s.Prefix+":"+s.Resource, options...)
	return r
}

// dialRedis turns off the notifications of hosted Redis servers, which leak a goroutine after Close.
func dialRedis(o redis.Options) *redis.Client {
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(&o)
}

func (r *redlock) acquire(ctx context.Context) error {
	for {
		err := r.mutex.LockContext(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func (r *redlock) try(ctx context.Context) error     { return r.mutex.TryLockContext(ctx) }
func (r *redlock) left() time.Duration               { return time.Until(r.mutex.Until()) }
func (r *redlock) token() string                     { return r.mutex.Value() }
func (r *redlock) extend(ctx context.Context) error  { return asError(r.mutex.ExtendContext(ctx)) }
func (r *redlock) release(ctx context.Context) error { return asError(r.mutex.UnlockContext(ctx)) }

// check asks the nodes. The library now recommends Until instead, but still offers this.
func (r *redlock) check(ctx context.Context) error {
	return asError(r.mutex.ValidContext(ctx)) //nolint:staticcheck // as above
}

var errNotHeld = errors.New("the lock is not held")

func asError(ok bool, err error) error {
	if err == nil && !ok {
		return errNotHeld
	}
	return err
}

func (r *redlock) write(ctx context.Context, conn *pgx.Conn, resource, value string) error {
	_, err := conn.Exec(ctx, "UPDATE plain SET value = $2 WHERE resource = $1", resource, value)
	return err
}

func (r *redlock) close() {
	for _, node := range r.nodes {
		_ = node.Close()
	}
}

// fenced is a program that works under fencegate's leases with the same carelessness: it keeps the grant, and writes
// with it whether or not it still holds the lease.
type fenced struct {
	s      settings
	pool   *pgxpool.Pool
	locker *lock.Locker
	lease  *lock.Lease
	grant  fence.Grant
}

// patient is a node timeout that is not reached on a busy machine.
const patient = time.Second

func fencegate(ctx context.Context, s settings) (*fenced, error) {
	pool, err := pgxpool.New(ctx, s.Gateway)
	if err != nil {
		return nil, err
	}
	f := pgfence.New(pool)
	cfg := lock.Config{
		Armer: f, Epochs: f, MaxTTL: s.MaxTTL, DefaultTTL: s.TTL, NodeTimeout: patient, KeyPrefix: lock.Prefix(s.Prefix),
	}
	for i, addr := range s.Nodes {
		cfg.Nodes = append(cfg.Nodes, lock.Node{Name: fmt.Sprintf("%c", 'A'+i), Addr: addr})
	}
	locker, err := lock.New(cfg)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &fenced{s: s, pool: pool, locker: locker}, nil
}

func (f *fenced) acquire(ctx context.Context) error {
	return f.have(f.locker.Acquire(ctx, f.s.Resource))
}

func (f *fenced) try(ctx context.Context) error {
	return f.have(f.locker.TryAcquire(ctx, f.s.Resource))
}

func (f *fenced) have(lease *lock.Lease, err error) error {
	if err != nil {
		return err
	}
	f.lease = lease
	f.grant, err = lease.Grant()
	return err
}

func (f *fenced) left() time.Duration {
	if f.lease == nil {
		return 0
	}
	return f.lease.Deadline().Left()
}

func (f *fenced) token() string                     { return strconv.FormatInt(int64(f.grant.Token), 10) }
func (f *fenced) check(ctx context.Context) error   { return f.lease.Extend(ctx, f.s.TTL) }
func (f *fenced) extend(ctx context.Context) error  { return f.lease.Extend(ctx, f.s.TTL) }
func (f *fenced) release(ctx context.Context) error { return f.lease.Release(ctx) }

// write presents the grant and writes, in one message and one transaction. The table's guard decides.
func (f *fenced) write(ctx context.Context, conn *pgx.Conn, resource, value string) error {
	batch := &pgx.Batch{}
	batch.Queue("SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true)",
		fence.EscapeResource(resource), f.grant.Presented())
	batch.Queue("UPDATE guarded SET value = $2 WHERE resource = $1", resource, value)
	return pgfence.Translate(conn.SendBatch(ctx, batch).Close())
}

func (f *fenced) close() {
	_ = f.locker.Close()
	f.pool.Close()
}

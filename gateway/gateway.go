package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/fencedsql"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/lockmetrics"
)

// Gateway is one gateway. Its methods are safe for concurrent use.
type Gateway struct {
	cfg       Config
	log       *slog.Logger
	parsed    parsed
	generated string

	pool     *pgxpool.Pool
	fence    *pgfence.Fence
	servers  *servers // knows which server is PostgreSQL
	source   leasing.Source
	locker   *lock.Locker  // of the Redis nodes; nil for another source
	tried    chan struct{} // closed once the nodes are admitted, or that has failed by more than a busy machine
	leasing  *lockmetrics.Metrics
	held     *holdings // the leases granted here
	began    time.Time
	seen     *seen // events for people
	notifier *notifier
	arms     *armMetrics
	ofPG     *pgMetrics
	ofS3     *s3Metrics
	sql      *fencedsql.Runner // nil without SQLURL
	pg       *pgwire.Server    // nil without PGListen
	socket   net.Listener      // nil without PGSocket
	s3       *s3.Server        // nil without S3Listen
	store    blob.Store        // nil without S3Listen
	api      *api.Server
	metrics  *metrics
	reloads  reloads // of principals

	mu       sync.Mutex
	state    state
	addrs    Addrs
	stop     func()
	finished chan struct{} // closed when all servers have ended
	err      error         // why they ended; read it after finished
	ending   sync.Once
	closed   sync.Once
	freed    error         // of closing; read it after closed
	aborted  chan struct{} // closed by Abort
	abort    func()
}

type state int

const (
	made state = iota
	started
	stopped
)

// Addrs are the addresses that a started gateway listens on, host:port; "" for a port that it does not have.
type Addrs struct{ API, PG, S3, Metrics string }

// New builds a gateway. It does not connect or listen yet. The error is a [*fence.InvalidError] that names a field of
// cfg, or the error of a part. [Gateway.Stop] frees what New made.
func New(cfg Config) (*Gateway, error) {
	p, wrong := cfg.parse()
	if len(wrong) > 0 {
		return nil, wrong[0]
	}
	cfg = cfg.withDefaults()
	g := &Gateway{began: time.Now(), held: newHoldings(), cfg: cfg, log: cfg.Logger, parsed: p, tried: make(chan struct{}), finished: make(chan struct{}), aborted: make(chan struct{})}
	g.abort = sync.OnceFunc(func() { close(g.aborted) })
	if cfg.GeneratesToken() {
		g.generated = rand.Text()
		g.cfg.API.BearerToken = g.generated
	}
	if err := g.build(); err != nil {
		return nil, errors.Join(err, g.free())
	}
	return g, nil
}

func (g *Gateway) build() (err error) {
	cfg := g.cfg
	pgfence.Configure(g.parsed.pool)
	if err = g.openServers(); err != nil {
		return err
	}
	if g.pool, err = pgxpool.NewWithConfig(context.Background(), g.parsed.pool); err != nil {
		return fmt.Errorf("pool of the gateway's login: %w", err)
	}
	g.servers.pool = g.pool
	if g.servers.keys != nil {
		g.servers.keys.pool = g.pool
	}
	g.arms = newArmMetrics()
	g.fence = pgfence.New(g.pool, pgfence.WithDrained(g.arms.drained))
	g.leasing, g.notifier, g.seen = lockmetrics.New(), newNotifier(g.pool, g.log), newSeen(g.log)
	if err = g.openSource(); err != nil {
		return err
	}
	if cfg.SQLURL != "" {
		if g.sql, err = fencedsql.New(fencedsql.Config{
			URL: cfg.SQLURL, MaxConns: int32(cfg.SQLConnections), Logger: g.log, Configure: func(pool *pgxpool.Config) { g.servers.configure(pool, false) },
		}); err != nil {
			return err
		}
	}
	if cfg.PGListen != "" {
		relay := relayed(g.servers, g.parsed.pgTLS, cfg)
		g.ofPG = newPGMetrics()
		relay.Fences, relay.Metrics = g.tokens, g.ofPG
		relay.EndBackend, relay.Judge, relay.Tell = g.endBackend, g.servers.judge, g.seen.Tell
		if g.pg, err = pgwire.New(relay); err != nil {
			return err
		}
		g.servers.tell(g.pg.Moved)
	}
	if cfg.S3Listen != "" {
		if err = g.buildS3(); err != nil {
			return err
		}
	}
	g.metrics = newMetrics(g)
	return g.buildAPI()
}

func (g *Gateway) buildS3() (err error) {
	if err = g.openStore(); err != nil {
		return err
	}
	g.ofS3 = newS3Metrics()
	g.s3, err = s3.New(s3.Deps{
		Pool: g.pool, Store: g.store, Keys: g.parsed.keyring, Leases: held{g.source, g.fence}, TLS: g.parsed.s3TLS, Logger: g.log, Metrics: g.ofS3,
		Tell: g.seen.Tell, Changes: g.servers.changes, Rights: g.rights(),
	}, g.cfg.S3)
	if err == nil {
		g.servers.reads.Store(g.s3)
	}
	return err
}

func (g *Gateway) buildAPI() (err error) {
	cfg := api.Config{
		Leases: g.source,
		Events: g.seen, Status: g.status, Principals: g.cfg.Principals,
		Fences: fences{fence: g.fence, source: g.source, tell: g.superseded, log: g.log}, Checks: g.checks(), Surfaces: g.surfaces(), Endpoints: g.endpoints,
		Handles: api.HandleKeys{Current: g.parsed.current, Master: g.parsed.masters},
		Options: g.cfg.API, DefaultTTL: g.cfg.DefaultTTL, MaxTTL: g.cfg.MaxTTL, DrainTimeout: g.cfg.DrainTimeout,
		Metrics: g.metrics.handler(), Observe: g.metrics.observe, Ended: g.leasing.Ended, Logger: g.log, TLS: g.parsed.apiTLS,
	}
	if g.sql != nil {
		cfg.SQL, cfg.SQLPerPrincipal = fencedSQL{g.sql, g.servers}, g.perPrincipal()
	}
	if g.pg != nil {
		cfg.Sessions = sessions{g.pg}
	}
	if g.s3 != nil {
		cfg.Credentials, cfg.Buckets = issuer{g.parsed.keyring}, buckets{g.s3.Catalog()}
	}
	g.api, err = api.New(cfg)
	return err
}

// GeneratedToken is the bearer token that was generated because the API listens off loopback and none was configured;
// "" otherwise. It is a secret and is never logged: show it to the operator once.
func (g *Gateway) GeneratedToken() string { return g.generated }

// Addrs returns the addresses once [Gateway.Start] has returned.
func (g *Gateway) Addrs() Addrs {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.addrs
}

// Run starts the gateway and serves until ctx ends or a part fails, then stops it.
func (g *Gateway) Run(ctx context.Context) error {
	if err := g.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // stopped while starting
		}
		return err
	}
	err := g.Wait(ctx)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	return errors.Join(err, g.Stop())
}

// Start listens, serves, and returns when Buckets are created and the nodes are admitted (InitNodes) or a first attempt
// has failed; admission then continues in the background. ctx bounds only the start. On an error Start stops everything
// again.
func (g *Gateway) Start(ctx context.Context) error {
	if err := g.serve(ctx); err != nil {
		return err
	}
	if err := g.prepare(ctx); err != nil {
		return errors.Join(err, g.Stop())
	}
	if err := g.awaitNodes(ctx); err != nil {
		return errors.Join(err, g.Stop())
	}
	g.probe(ctx)
	a := g.Addrs()
	g.log.Info("the gateway serves", "api", a.API, "pg", a.PG, "s3", a.S3, "metrics", a.Metrics, "access", g.access())
	return nil
}

// serve opens the listeners and starts the servers on them.
func (g *Gateway) serve(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != made {
		return errors.New("a gateway starts once")
	}
	g.state = stopped // unless all listeners open
	ports, servers, err := g.openPorts(ctx)
	if err != nil {
		return errors.Join(err, g.free())
	}
	servers = append(servers, g.watchContinuity, g.notifier.run, g.noticeExpiry, g.warnOfCertificates)
	if g.pg != nil {
		servers = append(servers, g.listen)
	}
	if g.s3 != nil {
		servers = append(servers, g.sweepOften)
	}
	if g.admits() {
		servers = append(servers, g.admitNodes)
	}
	if g.ofRedis() {
		servers = append(servers, g.noticeNodes)
	}
	if g.cfg.RetireAfter > 0 {
		servers = append(servers, g.retireOften)
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	group, serving := errgroup.WithContext(serving)
	open, closePorts := context.WithCancel(serving)
	var drained sync.WaitGroup
	for _, serve := range ports {
		drained.Add(1)
		group.Go(func() error {
			defer drained.Done()
			return serve(open)
		})
	}
	g.state, g.stop = started, func() {
		g.endure()
		closePorts()
		drained.Wait() // leases are renewed and released in the meantime
		stop()
	}
	for _, serve := range servers {
		group.Go(func() error { return serve(serving) })
	}
	go func() {
		g.err = group.Wait()
		close(g.finished)
	}()
	return nil
}

// endure waits for the time of the lame duck, so that balancers stop sending clients.
func (g *Gateway) endure() {
	g.api.Leave()
	if g.cfg.LameDuck == 0 {
		return
	}
	g.log.Info("the gateway is not ready any more and stops soon", "in", g.cfg.LameDuck)
	over := time.NewTimer(g.cfg.LameDuck)
	defer over.Stop()
	select {
	case <-over.C:
	case <-g.aborted:
	case <-g.finished:
	}
}

// Abort ends the sessions of the PostgreSQL port that a [Gateway.Stop] waits for, now or later. It does not wait.
func (g *Gateway) Abort() {
	g.abort()
	if g.pg != nil {
		g.pg.Abort()
	}
}

// openPorts opens every configured port, or none, and returns the functions that serve them: ports close first, late
// ones serve while the others drain. The addresses are known afterwards.
func (g *Gateway) openPorts(ctx context.Context) (ports, late []func(context.Context) error, err error) {
	var open []net.Listener
	defer func() {
		if err != nil {
			for _, ln := range open {
				_ = ln.Close()
			}
		}
	}()
	if g.socket, err = openSocket(ctx, g.cfg.PGSocket); err != nil {
		return nil, nil, fmt.Errorf("PostgreSQL port: %w", err)
	}
	if g.socket != nil {
		open = append(open, g.socket)
	}
	for _, port := range []struct {
		name, listen string
		addr         *string
		serve        func(context.Context, net.Listener) error
	}{
		{"HTTP API", g.cfg.APIListen, &g.addrs.API, g.api.Serve},
		{"PostgreSQL port", g.cfg.PGListen, &g.addrs.PG, g.servePG},
		{"S3 port", g.cfg.S3Listen, &g.addrs.S3, g.serveS3},
		{"metrics", g.cfg.MetricsListen, &g.addrs.Metrics, g.metrics.serve},
	} {
		if port.listen == "" {
			continue
		}
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", port.listen)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", port.name, err)
		}
		open = append(open, ln)
		*port.addr = ln.Addr().String()
		serve := func(ctx context.Context) error {
			if err := port.serve(ctx, ln); err != nil {
				return fmt.Errorf("%s: %w", port.name, err)
			}
			return nil
		}
		if port.addr == &g.addrs.API || port.addr == &g.addrs.Metrics {
			late = append(late, serve)
			continue
		}
		ports = append(ports, serve)
	}
	return ports, late, nil
}

func (g *Gateway) serveS3(ctx context.Context, ln net.Listener) error { return g.s3.Serve(ctx, ln) }

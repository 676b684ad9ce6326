package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/announce"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/fencedsql"
	"github.com/fencegate/fencegate/gateway/leases"
	"github.com/fencegate/fencegate/gateway/metrics"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/gateway/primary"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/lockmetrics"
	"github.com/fencegate/fencegate/lock/pglock"
	"github.com/fencegate/fencegate/wire"
)

// Gateway is one gateway. Its methods are safe for concurrent use.
type Gateway struct {
	cfg        Config
	log        *slog.Logger
	parsed     parsed
	generated  string
	began      time.Time
	principals *principals // nil without Principals

	primary   *primary.Primary
	fence     *pgfence.Fence
	source    leasing.Source
	nodes     *leases.Nodes  // nil: leases come from elsewhere
	ledger    *leases.Ledger // the leases granted here
	announcer *announce.Announcer
	feed      *activity.Feed // events for people
	ready     readiness

	sql   *fencedsql.Runner // nil without SQLURL
	pg    *pgwire.Server    // nil without PGListen
	s3    *s3.Server        // nil without S3Listen
	store blob.Store        // nil without S3Listen
	api   *api.Server

	registry *metrics.Registry
	arms     *metrics.Arms
	leasing  *lockmetrics.Metrics
	refusals metrics.Refusals
	ofPG     *metrics.PG
	ofS3     *metrics.S3

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

// New builds a gateway. It does not connect or listen yet. The error is a [*fence.InvalidError] that names a field of
// cfg, or the error of a part. [Gateway.Stop] frees what New made.
func New(cfg Config) (*Gateway, error) {
	p, wrong := cfg.parse()
	if len(wrong) > 0 {
		return nil, wrong[0]
	}
	cfg = cfg.withDefaults()
	g := &Gateway{began: time.Now(), cfg: cfg, log: cfg.Logger, parsed: p, finished: make(chan struct{}), aborted: make(chan struct{})}
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

func (g *Gateway) build() error {
	if g.cfg.Principals != nil {
		g.principals = &principals{Principals: g.cfg.Principals, verified: g.cfg.APITLSClientCA != "", log: g.log}
	}
	g.arms, g.leasing, g.refusals = metrics.NewArms(), lockmetrics.New(), metrics.NewRefusals()
	g.feed = activity.New(activity.Config{Logger: g.log, Refused: g.refusals.Count})
	for _, part := range []func() error{g.buildPrimary, g.buildSource, g.buildSQL, g.buildPG, g.buildS3} {
		if err := part(); err != nil {
			return err
		}
	}
	g.ready = readiness{
		pool: g.primary.Pool(), login: g.parsed.pool.ConnConfig.User, primary: g.primary, source: g.source, bestEffort: g.cfg.BestEffort,
		sql: g.sql, pg: g.pg != nil, s3: g.s3 != nil,
	}
	g.buildMetrics()
	return g.buildAPI()
}

func (g *Gateway) buildPrimary() (err error) {
	pgfence.Configure(g.parsed.pool)
	cfg := primary.Config{Pool: g.parsed.pool, KeyPrefix: g.cfg.KeyPrefix, DatabaseKeys: g.cfg.DatabaseKeys}
	switch {
	case g.cfg.PostgresLeases:
		cfg.Source = primary.SourcePostgres
	case g.cfg.Leases != nil:
		cfg.Source = cmp.Or(g.cfg.LeaseSource, primary.SourceOther)
	case len(g.cfg.RedisNodes) > 0:
		cfg.Source = primary.SourceRedis
	}
	if !g.cfg.EmbeddedNodes {
		cfg.Nodes = g.cfg.RedisNodes
	}
	if g.primary, err = primary.New(cfg); err != nil {
		return err
	}
	g.fence = pgfence.New(g.primary.Pool(), pgfence.WithDrained(g.arms.Drained))
	g.announcer = announce.New(g.primary.Pool(), g.log)
	return nil
}

// buildSource opens the source of leases: PostgreSQL, the configured one, or the Redis nodes. The rest of the gateway
// does not depend on which.
func (g *Gateway) buildSource() (err error) {
	g.ledger = leases.NewLedger()
	g.leasing.WatchHeld(g.ledger.Count)
	g.leasing.WatchHeldByPrefix(g.parsed.prefixes, func(visit func(resource string)) {
		g.ledger.Each(func(ref leasing.Ref) { visit(ref.Resource) })
	})
	armer := leases.Armer{Armer: g.fence, Primary: g.primary, Metrics: g.arms, Ledger: g.ledger, Announce: g.superseded, Tell: g.feed.Tell}
	var source leasing.Source
	switch {
	case g.cfg.PostgresLeases:
		source, err = pglock.New(pglock.Config{
			Pool: g.primary.Pool(), Armed: armer.Granted, OnAccepted: g.primary.Arming, MaxTTL: g.cfg.MaxTTL, Logger: g.log, Metrics: g.leasing,
		})
	case g.cfg.Leases != nil:
		source, err = g.cfg.Leases(armer)
	default:
		source, err = g.openNodes(armer)
	}
	if source != nil {
		g.source = leases.Source{
			Source: source, Fence: g.fence, Primary: g.primary, Ledger: g.ledger, Nodes: g.nodes, SealUsed: api.ErrKeyUsed, Log: g.log,
		}
	}
	return err
}

func (g *Gateway) openNodes(armer leases.Armer) (leasing.Source, error) {
	cfg := g.cfg.locker()
	cfg.Armer, cfg.Epochs, cfg.Logger, cfg.Metrics = armer, g.fence, g.log, g.leasing
	if prefix := g.primary.KeyPrefix(); prefix != nil {
		cfg.KeyPrefix = prefix
	}
	locker, err := lock.New(cfg)
	if err != nil {
		return nil, err
	}
	g.leasing.Watch(locker)
	g.nodes = leases.NewNodes(locker, g.log)
	return locker.Source(), nil
}

// superseded ends sessions with grants older than token, on this gateway and others.
func (g *Gateway) superseded(resource string, token fence.Token) {
	g.announcer.Announce(resource)
	if g.pg != nil {
		g.pg.Superseded(resource, token)
	}
}

func (g *Gateway) buildSQL() (err error) {
	if g.cfg.SQLURL != "" {
		g.sql, err = fencedsql.New(fencedsql.Config{
			URL: g.cfg.SQLURL, MaxConns: int32(g.cfg.SQLConnections), Logger: g.log, Configure: g.primary.Configure,
		})
	}
	return err
}

func (g *Gateway) buildPG() (err error) {
	if g.cfg.PGListen == "" {
		return nil
	}
	relay := relayOf(g.primary, g.parsed.pgTLS, g.cfg)
	g.ofPG = metrics.NewPG()
	relay.Fences, relay.Metrics = leases.Tokens{Pool: g.primary.Pool()}.Recorded, g.ofPG
	relay.EndBackend, relay.Judge, relay.Tell = backends{g.primary.Pool()}.end, g.primary.Judge, g.feed.Tell
	if g.pg, err = pgwire.New(relay); err != nil {
		return err
	}
	g.primary.OnMove(func(home primary.Host) { g.pg.Moved(pgwire.Upstream(home)) })
	return nil
}

func (g *Gateway) buildS3() (err error) {
	if g.cfg.S3Listen == "" {
		return nil
	}
	if g.store, err = blob.OpenAt(context.Background(), g.cfg.BlobDir); err != nil {
		return fmt.Errorf("blobs: %w", err)
	}
	g.ofS3 = metrics.NewS3()
	deps := s3.Deps{
		Pool: g.primary.Pool(), Store: g.store, Keys: g.parsed.keyring, TLS: g.parsed.s3TLS, Logger: g.log, Metrics: g.ofS3,
		Leases: leases.Validity{Source: g.source, Fence: g.fence, Away: s3.ErrLockAway},
		Tell:   g.feed.Tell, Changes: g.primary.Changes,
	}
	if g.principals != nil {
		deps.Rights = g.principals
	}
	if g.s3, err = s3.New(deps, g.cfg.S3); err != nil {
		return err
	}
	g.primary.OnIdentity(g.s3.SawDatabase)
	return nil
}

func (g *Gateway) buildMetrics() {
	r := metrics.New(g.cfg.Version)
	r.MustRegister(g.refusals, g.leasing)
	g.arms.Register(r)
	if g.principals != nil {
		r.Gauge("fencegate_principals_last_reload_successful", "1, or 0 if the last attempt to replace the principals was refused: the previous ones stay then.", g.principals.lastReload)
	}
	if g.pg != nil {
		g.ofPG.Register(r, g.pg.Stats, g.pg.Traffic)
	}
	if g.s3 != nil {
		g.ofS3.Register(r, g.s3.Stats)
	}
	r.MustRegister(
		metrics.NewPool(g.primary.Pool().Stat),
		metrics.NewCertificateEnds(map[string]*tls.Config{"api": g.parsed.apiTLS, wire.SurfacePG: g.parsed.pgTLS, wire.SurfaceS3: g.parsed.s3TLS}),
		metrics.NewQuery("fencegate_ready", "1 where a surface can serve, else 0, also while the gateway stops: lease, pg, sql or s3, as of /readyz?for=. Only lease needs Redis. Asked every 5 s at most.", []string{"surface"}, readyFor,
			func(ctx context.Context) map[string]float64 { return g.ready.ports(ctx, g.api.Leaving) }),
		metrics.NewQuery("fencegate_uncovered_tables", "Tables that fence.uncovered lists: they could be written unfenced. Asked once a minute at most.", nil, uncoveredFor, g.ready.uncovered),
	)
	g.registry = r
}

func (g *Gateway) buildAPI() (err error) {
	cfg := api.Config{
		Leases: g.source, Events: g.feed, Principals: g.cfg.Principals,
		Status: status{
			version: g.cfg.Version, began: g.began, bestEffort: g.cfg.BestEffort, ofPostgres: g.cfg.PostgresLeases, keys: g.parsed.keyring,
			primary: g.primary, nodes: g.nodes, ledger: g.ledger, pg: g.pg, s3: g.s3 != nil,
		}.read,
		Fences: fences{fence: g.fence, source: g.source, announce: g.superseded, log: g.log}, Checks: g.ready.checks(), Surfaces: g.ready.surfaces(),
		Endpoints: endpoints{cfg: g.cfg, postgres: g.parsed.pgAdvertise, database: g.parsed.pool.ConnConfig.Database, addrs: g.Addrs}.from,
		Handles:   api.HandleKeys{Current: g.parsed.current, Master: g.parsed.masters},
		Options:   g.cfg.API, DefaultTTL: g.cfg.DefaultTTL, MaxTTL: g.cfg.MaxTTL, DrainTimeout: g.cfg.DrainTimeout,
		Metrics: g.registry.Handler(), Observe: g.registry.Observe, Ended: g.leasing.Ended, Logger: g.log, TLS: g.parsed.apiTLS,
	}
	if g.sql != nil {
		cfg.SQL = fencedSQL{g.sql, g.primary}
		if g.principals != nil {
			cfg.SQLPerPrincipal = perPrincipal(g.cfg.SQLConnections)
		}
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
	var binding func(context.Context) error
	if g.pg != nil {
		binding = g.pg.CheckChannelBinding
	}
	probe(ctx, g.ready.checks(), binding, g.log)
	a := g.Addrs()
	g.log.Info("the gateway serves", "api", a.API, "pg", a.PG, "s3", a.S3, "metrics", a.Metrics, "access", accessBy(g.principals != nil, g.cfg.API.BearerToken))
	return nil
}

func (g *Gateway) prepare(ctx context.Context) error {
	p := preparation{timeout: g.cfg.StartTimeout, finished: g.finished, why: func() error { return g.err }, log: g.log}
	if g.s3 != nil {
		p.steps = append(p.steps, step{"check the blob store", "the blob store", g.s3.Keeper().Check})
	}
	if len(g.parsed.buckets) > 0 {
		p.steps = append(p.steps, bucketSteps(g.primary.Pool(), g.s3.Catalog(), g.parsed.buckets, g.log)...)
	}
	return p.run(ctx)
}

// awaitNodes waits until the nodes are admitted, or a first attempt has failed, for StartTimeout at most. The error is
// ctx's or that of a part that ended.
func (g *Gateway) awaitNodes(ctx context.Context) error {
	if !g.admits() {
		return nil
	}
	patience := time.NewTimer(g.cfg.StartTimeout)
	defer patience.Stop()
	select {
	case <-g.nodes.Tried():
	case <-patience.C:
	case <-g.finished:
		return g.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// admits reports whether the gateway has to admit nodes.
func (g *Gateway) admits() bool { return g.cfg.InitNodes && g.nodes != nil }

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
	servers = append(servers, g.tasks()...)
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
		g.waitLameDuck()
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

// tasks are what runs beside the ports, until the gateway stops.
func (g *Gateway) tasks() []func(context.Context) error {
	tasks := []func(context.Context) error{
		func(ctx context.Context) error { return watchPrimary(ctx, g.primary, g.log) },
		g.announcer.Run,
		leases.Expiry{Ledger: g.ledger, Source: g.source, Clock: clock.New(), Current: leases.Tokens{Pool: g.primary.Pool()}.Current, Tell: g.feed.Tell}.Run,
		func(ctx context.Context) error { return warnOfCertificates(ctx, g.cfg) },
	}
	if g.pg != nil {
		tasks = append(tasks, announce.Listener{Config: g.parsed.pool.ConnConfig, Primary: g.primary, Look: g.pg.Look, Log: g.log}.Run)
	}
	if g.s3 != nil {
		tasks = append(tasks, sweeper{cfg: g.cfg, keeper: g.s3.Keeper(), metrics: g.ofS3, tell: g.feed.Tell}.run)
	}
	if g.admits() {
		tasks = append(tasks, g.nodes.Admit)
	}
	if g.nodes != nil {
		tasks = append(tasks, func(ctx context.Context) error { return g.nodes.Watch(ctx, g.feed.Tell) })
	}
	if g.cfg.RetireAfter > 0 {
		tasks = append(tasks, leases.Retirement{
			Fence: g.fence, Source: g.source, After: g.cfg.RetireAfter, TTL: g.cfg.DefaultTTL, Count: g.arms.Retired, Log: g.log,
		}.Run)
	}
	return tasks
}

func (g *Gateway) openPorts(ctx context.Context) (ports, late []func(context.Context) error, err error) {
	socket, err := openSocket(ctx, g.cfg.PGSocket)
	if err != nil {
		return nil, nil, fmt.Errorf("PostgreSQL port: %w", err)
	}
	return openPorts(ctx, socket, []port{
		{"HTTP API", g.cfg.APIListen, &g.addrs.API, true, g.api.Serve},
		{"PostgreSQL port", g.cfg.PGListen, &g.addrs.PG, false, func(ctx context.Context, ln net.Listener) error {
			if socket == nil {
				return g.pg.Serve(ctx, ln)
			}
			return g.pg.Serve(ctx, ln, socket)
		}},
		{"S3 port", g.cfg.S3Listen, &g.addrs.S3, false, func(ctx context.Context, ln net.Listener) error { return g.s3.Serve(ctx, ln) }},
		{"metrics", g.cfg.MetricsListen, &g.addrs.Metrics, true, g.registry.Serve},
	})
}

// waitLameDuck waits for the time of the lame duck, so that balancers stop sending clients.
func (g *Gateway) waitLameDuck() {
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

// Wait returns when a part ends by itself, with its error, or when ctx ends, with ctx's.
func (g *Gateway) Wait(ctx context.Context) error {
	select {
	case <-g.finished:
		return g.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop drains and ends everything, within LameDuck plus about twice DrainTimeout. It may be called more than once, also
// concurrently: each call returns when all is over, with the same error. Leases stay held until they are released or
// expire.
func (g *Gateway) Stop() error {
	g.ending.Do(g.end)
	return g.free()
}

// end stops what Start started, and waits for it.
func (g *Gateway) end() {
	g.mu.Lock()
	was := g.state
	g.state = stopped
	g.mu.Unlock()
	if was == started {
		g.stop()
		<-g.finished
	}
}

// free closes what New made, once.
func (g *Gateway) free() error {
	g.closed.Do(func() {
		if g.sql != nil {
			g.sql.Close()
		}
		g.feed.Close()
		if g.source != nil {
			g.freed = g.source.Close()
		}
		if g.primary != nil {
			g.freed = errors.Join(g.freed, g.primary.Close())
		}
		if c, ok := g.store.(io.Closer); ok {
			g.freed = errors.Join(g.freed, c.Close())
		}
	})
	return g.freed
}

// Permit replaces the rules of the PostgreSQL port, see [pgwire.Server.Permit]. On an error, a [*fence.InvalidError],
// nothing changes.
func (g *Gateway) Permit(rules []pgwire.Rule) error {
	if g.pg == nil {
		return &fence.InvalidError{Field: "PGListen", Reason: "is empty: there is no PostgreSQL port"}
	}
	return g.pg.Permit(rules)
}

// SetPrincipals replaces the principals of a gateway that has some, also for requests and streams under way. read
// returns them. If read fails or they are invalid, nothing changes, and the metrics say so until a later change
// succeeds.
func (g *Gateway) SetPrincipals(read func() ([]access.Definition, []access.Option, error)) error {
	if g.principals == nil {
		return &fence.InvalidError{Field: "Principals", Reason: "are none: the gateway was started without"}
	}
	return g.principals.replace(read)
}

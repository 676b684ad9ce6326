package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/gateway/pgwire"
)

// relayed derives where the PostgreSQL port relays to from the gateway's own
// address of the database: to all of its hosts, in its order.
func relayed(conn *pgconn.Config, clients *tls.Config, cfg Config) pgwire.Config {
	ways := upstreams(conn)
	c := pgwire.Config{
		Options: cfg.PG,
		Network: ways[0].Network, Addr: ways[0].Addr, UpstreamTLS: ways[0].TLS, UpstreamDirectTLS: ways[0].DirectTLS, Fallbacks: ways[1:],
		Database: conn.Database, DrainTimeout: cfg.DrainTimeout, Logger: cfg.Logger, TLS: clients,
	}
	if conn.ValidateConnect != nil {
		c.Suitable = (&hosts{config: conn, ways: ways, grace: graceForOthers}).suitable
	}
	return c
}

// upstreams is one way to each host. Where the address also allows a plain
// connection (sslmode prefer, the default, and allow) it is plain: clients log
// in through it, and SCRAM with channel binding can't pass two different TLS
// connections.
func upstreams(conn *pgconn.Config) []pgwire.Upstream {
	var ways []pgwire.Upstream
	all := append([]*pgconn.FallbackConfig{{Host: conn.Host, Port: conn.Port, TLSConfig: conn.TLSConfig}}, conn.Fallbacks...)
	for i, f := range all {
		network, addr := pgconn.NetworkAddress(f.Host, f.Port)
		way := pgwire.Upstream{Network: network, Addr: addr, TLS: f.TLSConfig, DirectTLS: f.TLSConfig != nil && conn.SSLNegotiation == "direct"}
		switch {
		case i == 0 || ways[len(ways)-1].Addr != addr: // the ways to one host stand side by side
			ways = append(ways, way)
		case way.TLS == nil:
			ways[len(ways)-1] = way
		}
	}
	return ways
}

// hosts finds those that target_session_attrs asks for, by logging in as the gateway.
type hosts struct {
	config *pgconn.Config
	ways   []pgwire.Upstream
	grace  time.Duration // for the others, once one that will do has answered

	mu    sync.Mutex
	found []pgwire.Upstream
	when  time.Time
}

// foundFor is how long an answer counts: many sessions may begin at a time.
const foundFor = time.Second

func (h *hosts) suitable(ctx context.Context) ([]pgwire.Upstream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.found) > 0 && time.Since(h.when) < foundFor {
		return h.found, nil
	}
	errs := h.lookAtAll(ctx)
	h.found, h.when = nil, time.Now()
	var second []pgwire.Upstream // such as the primary, for prefer-standby
	for i, way := range h.ways {
		switch {
		case errs[i] == nil:
			h.found = append(h.found, way)
		case notPreferred(errs[i]):
			second = append(second, way)
		}
	}
	h.found = append(h.found, second...)
	if len(h.found) == 0 {
		return nil, fmt.Errorf("no host is as target_session_attrs asks: %w", errors.Join(errs...))
	}
	return h.found, nil
}

func notPreferred(err error) bool {
	_, is := errors.AsType[*pgconn.NotPreferredError](err)
	return is
}

// graceForOthers is short: a machine that is gone answers nothing at all, and logins
// wait for this.
const graceForOthers = 250 * time.Millisecond

// lookAtAll asks all hosts at once, and says of each why it will not do.
func (h *hosts) lookAtAll(ctx context.Context) []error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		host int
		err  error
	}
	answers := make(chan answer, len(h.ways))
	var looks sync.WaitGroup
	defer looks.Wait()
	defer cancel()
	errs := make([]error, len(h.ways))
	for i, way := range h.ways {
		errs[i] = fmt.Errorf("%s did not answer in time", way.Addr)
		looks.Go(func() { answers <- answer{i, h.look(ctx, way)} })
	}
	var late <-chan time.Time
	for range h.ways {
		select {
		case a := <-answers:
			errs[a.host] = a.err
			if late == nil && (a.err == nil || notPreferred(a.err)) {
				late = time.After(h.grace)
			}
		case <-late:
			return errs
		}
	}
	return errs
}

func (h *hosts) look(ctx context.Context, way pgwire.Upstream) error {
	config := h.config.Copy()
	all := append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	config.Fallbacks = nil
	for _, f := range all {
		if _, addr := pgconn.NetworkAddress(f.Host, f.Port); addr == way.Addr && (f.TLSConfig == nil) == (way.TLS == nil) {
			config.Host, config.Port, config.TLSConfig = f.Host, f.Port, f.TLSConfig
		}
	}
	check := config.ValidateConnect
	config.ValidateConnect = nil // its answer is wanted here, whatever it is
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return check(ctx, conn)
}

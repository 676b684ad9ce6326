package client

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
)

func init() { //nolint:gochecknoinits // a table of surfaces whose parts are in several files
	makers["http-port"] = newHTTPPort
	makers["http-direct"] = newHTTPDirect
}

// grantConn is a lease by HTTP whose grant is presented by a
// connection to a gateway's PostgreSQL port, or to PostgreSQL.
type grantConn struct {
	rows

	env     *env
	address func() string
	pool    *pgxpool.Pool // for pgfence.InTx; nil: single connections only
}

func newHTTPPort(e *env) (surface, error) {
	return &grantConn{env: e, address: func() string { return e.cfg.Gateways[e.gateway()].PGURL }}, nil
}

func newHTTPDirect(e *env) (surface, error) {
	pool, err := pool(e.cfg.WriterURL, 4*e.cfg.Workers+4)
	return &grantConn{env: e, address: func() string { return e.cfg.WriterURL }, pool: pool}, err
}

func (g *grantConn) close() {
	if g.pool != nil {
		g.pool.Close()
	}
}

func (g *grantConn) acquire(ctx context.Context, a ask) (holding, error) {
	lease, err := g.env.lease(ctx, a)
	if err != nil {
		return nil, err
	}
	h := &grantHolding{httpLease: lease, from: g}
	h.startup = g.env.dice.below(3) > 0
	h.pooled = g.pool != nil && g.env.dice.chance(2)
	return h, nil
}

// grantHolding uses one connection at a time, and opens another when that has ended.
type grantHolding struct {
	*httpLease

	from    *grantConn
	startup bool // the connection presents the grant; false: each transaction does
	pooled  bool // writes with pgfence.InTx
	session *session
}

// open returns the connection. An error means that no transaction began.
func (h *grantHolding) open(ctx context.Context) (*session, error) {
	if h.session != nil && !h.session.conn.IsClosed() {
		return h.session, nil
	}
	var options map[string]string
	if h.startup {
		options = map[string]string{"fence.resource": fence.EscapeResource(h.grant.Resource), "fence.token": h.grant.Presented()}
	}
	s, err := connect(ctx, h.from.address(), options)
	if err != nil {
		return nil, connectFailure(err)
	}
	h.session = s
	return s, nil
}

// connectFailure classifies an error of a login, which changed nothing.
func connectFailure(err error) error {
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		return sqlFailure(answer, false)
	}
	return sqlFailure(errors.New("no connection: "+plain(err)), false)
}

func (h *grantHolding) read(ctx context.Context, register string) (saw, wrong string, err error) {
	if h.pooled {
		return poolRead(ctx, h.from.pool, register)
	}
	s, err := h.open(ctx)
	if err != nil {
		return "", "", err
	}
	saw, err = s.read(ctx, register[len(rowKind):])
	return saw, "", err
}

func (h *grantHolding) write(ctx context.Context, w write) error {
	row := rowWrite{write: w, resource: h.grant.Resource, token: h.token()}
	if h.pooled || !h.startup {
		row.grant = &h.grant
	}
	if h.pooled {
		return poolWrite(ctx, h.from.pool, row)
	}
	s, err := h.open(ctx)
	if err != nil {
		return err
	}
	return s.write(ctx, row)
}

// release closes the connection first, as programs do, or leaves it to forget.
func (h *grantHolding) release(ctx context.Context) error {
	if h.env.dice.chance(2) {
		h.forget()
	}
	return h.httpLease.release(ctx)
}

func (h *grantHolding) forget() {
	h.session.close()
	h.session = nil
}

package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
)

func init() { //nolint:gochecknoinits // a table of surfaces whose parts are in several files
	makers["conn-lease"] = func(e *env) (surface, error) { return &connLease{env: e}, nil }
}

// connLease is a lease in the connection string of the PostgreSQL port. It lives as long as its connection.
type connLease struct {
	rows

	env *env
}

func (c *connLease) close() {}

// acquire connects, each time as a separate run, which reads the stored values again. A login without an answer may
// have received the lease, which then ends with the connection.
func (c *connLease) acquire(ctx context.Context, a ask) (holding, error) {
	option := fence.EscapeResource(a.resource) + ";once=" + rand.Text() + ";ttl=" + a.ttl.String()
	if end, ok := ctx.Deadline(); ok && !a.try {
		option += ";wait=" + max(time.Until(end)-time.Second, time.Millisecond).Truncate(time.Millisecond).String()
	}
	s, err := connect(ctx, c.env.cfg.Gateways[c.env.gateway()].PGURL, map[string]string{"fence.lease": option}, 0)
	if err != nil {
		return nil, leaseFailure(err)
	}
	h := &connHolding{session: s, resource: a.resource}
	if err := s.conn.QueryRow(ctx, "SELECT fence.check()").Scan(&h.number); err != nil {
		h.forget()
		return nil, sqlFailure(err, true)
	}
	return h, nil
}

// leaseFailure classifies the answer to a login with fence.lease (docs/pgwire.md).
func leaseFailure(err error) error {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return &failure{outcome: history.Unknown, err: errors.New("no connection: " + plain(err))}
	}
	f := &failure{outcome: history.Failed, code: answer.Code, err: err}
	switch answer.Code {
	case "55P03":
		var facts struct{ Holder string }
		_ = json.Unmarshal([]byte(answer.Detail), &facts) // the detail is optional
		f.outcome, f.code, f.holder = history.Refused, "held", facts.Holder
	case "42501", "53300":
		f.outcome = history.Refused
	}
	if strings.HasPrefix(answer.Code, "ZF") {
		f.outcome = history.Refused
	}
	return f
}

// connHolding uses a single connection.
type connHolding struct {
	session  *session
	resource string
	number   int64
}

func (h *connHolding) token() int64        { return h.number }
func (h *connHolding) deadline() time.Time { return time.Time{} }

func (h *connHolding) renew(context.Context) error { return errNoRenewal }

func (h *connHolding) read(ctx context.Context, register string) (saw, wrong string, err error) {
	saw, err = h.session.read(ctx, register[len(rowKind):])
	return saw, "", err
}

func (h *connHolding) write(ctx context.Context, w write) error {
	return h.session.write(ctx, rowWrite{write: w, resource: h.resource, token: h.number})
}

// release closes the connection. No answer confirms that the lease ended with it.
func (h *connHolding) release(context.Context) error {
	h.forget()
	return &failure{outcome: history.Unknown, code: "disconnected", err: errors.New("the end of a connection is not answered")}
}

func (h *connHolding) forget() { h.session.close() }

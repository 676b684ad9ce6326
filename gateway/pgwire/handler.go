package pgwire

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"
)

// surplusTimeout is the time for connections that will be refused.
const surplusTimeout = 2 * time.Second

// services are what the connections of a server share.
type services struct {
	cfg            Config
	log            *slog.Logger
	rules          atomic.Pointer[[]Rule]
	counters       counters
	limits         limits
	upstreams      upstreams
	sessions       registry
	fences         fences
	authentication authentication
}

// handler serves one accepted connection: a session, a cancel request, or a client that is refused.
type handler struct {
	*services

	client  *client
	place   *place
	session *session
}

func newHandler(all *services, conn net.Conn, place *place) *handler {
	c := newClient(conn, all.cfg.KeepAlive, all.log)
	longest := all.cfg.LoginTimeout
	if place.surplus {
		longest = min(surplusTimeout, longest)
	}
	return &handler{services: all, client: c, place: place, session: newSession(c, &all.counters, c.began.Add(longest))}
}

// serve serves the connection to its end.
func (h *handler) serve(ctx context.Context) {
	defer func() { _ = h.client.raw.Close() }()
	defer h.place.leave()
	defer h.session.endLogin()
	firstByte := h.client.began.Add(h.cfg.FirstByteTimeout)
	if firstByte.After(h.session.loginEnds) {
		firstByte = h.session.loginEnds
	}
	_ = h.client.raw.SetDeadline(firstByte)
	opening, err := h.readOpening(ctx)
	if err != nil {
		h.refuse(err)
		return
	}
	if opening.code() == codeCancel {
		// PostgreSQL's answer to a cancel request is the end of the connection.
		if err := h.cancel(ctx, opening); err != nil {
			h.log.Warn("failed to pass on a cancel request", "client", h.client.address(), "error", err)
		}
		return
	}
	if err := h.serveSession(ctx, opening); err != nil {
		h.refuse(err)
	}
}

// readOpening reads the startup packet or a cancel request, and what precedes it: a proxy's header and the negotiation
// of TLS.
func (h *handler) readOpening(ctx context.Context) (packet, error) {
	if behindProxy(h.client.raw, h.cfg.ProxyNetworks) {
		addr, err := readProxyHeader(h.client.raw)
		if err != nil {
			return nil, err
		}
		if h.client.proxiedAddr = addr; addr.IsValid() {
			if err := h.place.setAddr(addr.Addr()); err != nil {
				return nil, err
			}
		}
	}
	return h.client.negotiate(ctx, h.cfg.TLS, h.session.extendDeadline)
}

// cancel passes a cancel request on. The client's connection is closed as soon as the session's server has processed
// it.
func (h *handler) cancel(ctx context.Context, p packet) error {
	if !validCancel(p) {
		return errors.New("malformed cancel request")
	}
	at := cmp.Or(h.sessions.serverOf(p[minPacketBytes:]), h.upstreams.home.Load())
	return h.upstreams.cancel(ctx, p, at, func() { _ = h.client.raw.Close() })
}

// serveSession returns an error only if the connection has not become a session.
func (h *handler) serveSession(ctx context.Context, opening packet) error {
	who, err := h.checkStartup(opening)
	switch {
	case err != nil:
		return err
	case h.place.surplus:
		return errTooMany
	}
	h.client.who = who
	policy := h.session.setPolicy(&h.rules)
	if opening, err = h.startupPacket(opening, policy); err != nil {
		return err
	}
	conn, way, err := h.upstreams.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	r := h.relayTo(&backend{conn: conn, way: way, upstreams: &h.upstreams}, policy)
	if why := h.session.logIn(r.upstream); why != nil {
		return why
	}
	if _, err := conn.Write(opening); err != nil {
		return unreachableError(h.upstreams.ways, err)
	}
	r.carry()
	return nil
}

func (h *handler) checkStartup(opening packet) (startup, error) {
	who, err := parseStartup(opening)
	if err == nil {
		err = h.client.checkCertificate(h.cfg.TLS)
	}
	if err != nil {
		return who, err
	}
	if want := h.cfg.Database; want != "" && who.database != want && !who.physical {
		return who, &fatalError{
			code:    codeUnknownDatabase,
			message: "database " + quote(who.database) + " is not served here",
			hint:    "A gateway serves one database; the gateway's own settings name it.",
		}
	}
	return who, nil
}

// startupPacket returns the startup packet for PostgreSQL. It is unchanged, except for a session that starts read-only,
// and for the client's address in the application_name. A replication connection keeps its application_name, because it
// identifies synchronous standbys.
func (h *handler) startupPacket(opening packet, policy Policy) (packet, error) {
	who := h.client.who
	var add []string
	if policy == PolicyReadOnly && !who.presents && !who.physical {
		add = []string{"default_transaction_read_only", "on"}
	}
	if h.cfg.NamesClients && !who.replicates {
		name := applicationFrom(who.application, h.client.address())
		if p, err := withSettings(opening, append(add, settingApplication, name)...); err == nil {
			return p, nil
		} // the packet is full: omit the name, which serves people only
	}
	if len(add) == 0 {
		return opening, nil
	}
	return withSettings(opening, add...)
}

// relayTo returns the relay between the client and a backend.
func (h *handler) relayTo(upstream *backend, policy Policy) *relay {
	e := &events{report: h.cfg.Tell, client: h.client, session: h.session}
	return &relay{
		client: h.client, upstream: upstream, session: h.session,
		authentication: &h.authentication, events: e, fences: &h.fences, counters: &h.counters,
		admission: &admission{
			client: h.client, upstream: upstream.conn, session: h.session, policy: policy, place: h.place,
			events: e, counters: &h.counters, judge: h.cfg.Judge, timeout: h.cfg.DialTimeout,
		},
	}
}

// refuse ends a connection that has not become a session.
func (h *handler) refuse(err error) {
	refusal, ok := asFatalError(err)
	log := h.log.With("client", h.client.address())
	switch {
	case !ok && isTimeout(err):
		log.Debug("a client did not finish its login in time", "error", err)
		return
	case !ok && isHandshake(err):
		log.Warn("a TLS handshake failed", "error", err)
		return
	case errors.Is(err, errNoProxyHeader):
		log.Warn("a connection from a network of proxies was refused", "error", err)
		return
	case !ok:
		log.Debug("a client left before its login", "error", err)
		return
	}
	h.counters.refuse(refusal)
	log.Warn("a connection was refused", "sqlstate", refusal.code, "error", refusal)
	h.client.sendFatal(refusal, longLinger)
}

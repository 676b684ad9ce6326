package client

import (
	"crypto/tls"
	"net/http"
	"sync"
)

// defaultHTTP returns an HTTP client with the TLS configuration; nil: the default one, whose connections all clients
// share.
func defaultHTTP(cfg *tls.Config) *http.Client {
	if cfg == nil {
		return &http.Client{Transport: shared()}
	}
	return &http.Client{Transport: transport(cfg)}
}

var shared = sync.OnceValue(func() http.RoundTripper { return transport(nil) })

// transport is http.DefaultTransport with HTTP/1.1 only. A request that times out closes its connection there, so the
// next one makes a new connection. With HTTP/2 it ends its stream only: after a silently cut connection every renewal
// would be sent on that connection, until the lease is over.
func transport(cfg *tls.Config) http.RoundTripper {
	base, ok := http.DefaultTransport.(*http.Transport)
	switch {
	case !ok && cfg == nil: // the program has replaced it
		return http.DefaultTransport
	case !ok:
		base = &http.Transport{Proxy: http.ProxyFromEnvironment}
	}
	t := base.Clone()
	switch {
	case cfg != nil:
		t.TLSClientConfig = cfg.Clone()
	case t.TLSClientConfig == nil:
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	t.TLSClientConfig.NextProtos = nil // the default transport's contain h2
	t.TLSNextProto, t.ForceAttemptHTTP2 = nil, false
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	return t
}

// unredirected returns the client without following redirects: a followed one turns POST into GET, whose answer says
// nothing of the request.
func unredirected(c *http.Client) *http.Client {
	direct := *c
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &direct
}

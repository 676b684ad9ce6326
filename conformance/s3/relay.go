package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// relay forwards requests to a server. It holds back the first one with a given method: the client sees the connection
// break, and the server gets the request when [relay.deliver] is called.
type relay struct {
	addr string

	method string
	to     *url.URL
	proxy  *httputil.ReverseProxy
	server *http.Server

	mu    sync.Mutex
	kept  *http.Request // the one held back, with its whole body
	count int           // of requests with the method, including the kept one
}

func startRelay(to, method string) (*relay, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{addr: ln.Addr().String(), method: method, to: &url.URL{Scheme: "http", Host: to}}
	r.proxy = &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(r.to)
		p.Out.Host = p.In.Host // the signature includes it
	}}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go func() { _ = r.server.Serve(ln) }() // ends with close
	return r, nil
}

func (r *relay) close() error { return r.server.Close() }

// ServeHTTP implements [http.Handler].
func (r *relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != r.method || !r.holds(req) {
		r.proxy.ServeHTTP(w, req)
		return
	}
	panic(http.ErrAbortHandler) // the documented way to break the connection
}

// holds keeps the request if it is the first with the method.
func (r *relay) holds(req *http.Request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	if r.count > 1 {
		return false
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return true // kept stays empty, which deliver reports
	}
	r.kept = req.Clone(context.Background())
	r.kept.Body, r.kept.RequestURI = io.NopCloser(bytes.NewReader(body)), ""
	r.kept.URL.Scheme, r.kept.URL.Host = r.to.Scheme, r.to.Host
	return true
}

// deliver sends the held request to the server, and returns the answer's status.
func (r *relay) deliver() (status int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept == nil {
		return 0, errors.New("no request was held back")
	}
	if r.count < 2 {
		return 0, fmt.Errorf("the client sent the %s once only", r.method)
	}
	res, err := http.DefaultTransport.RoundTrip(r.kept)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

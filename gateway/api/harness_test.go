package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/fencegate/fencegate/gateway/api"
)

// handlerTransport is the way to a server in a bubble of [testing/synctest]. It calls the server's handler instead of
// using a network, and acts like one: bodies are streamed, and a client that gives up, or closes the body of its
// answer, ends the request's context.
type handlerTransport struct {
	t       *testing.T
	handler http.Handler
	running sync.WaitGroup
}

func transportTo(t *testing.T, s *api.Server) http.RoundTripper {
	t.Helper()
	h := &handlerTransport{t: t, handler: s.Handler()}
	t.Cleanup(h.running.Wait) // the contexts of the test's requests have ended
	return h
}

func (h *handlerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	body, to := io.Pipe()
	a := &streamed{to: to, header: http.Header{}, began: make(chan struct{})}
	gone := context.AfterFunc(ctx, func() { _, _ = to.CloseWithError(ctx.Err()), body.CloseWithError(ctx.Err()) })
	h.running.Go(func() {
		defer cancel()
		defer gone() // what is sent stays readable
		h.serve(a, arrived(req.WithContext(ctx)))
	})
	select {
	case <-a.began:
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	return &http.Response{
		StatusCode: a.status, Status: fmt.Sprint(a.status, " ", http.StatusText(a.status)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.sent, ContentLength: -1, Request: req, Body: answerBody{body, cancel},
	}, nil
}

// serve is one call of the handler. A panic fails the test and breaks the answer off.
func (h *handlerTransport) serve(a *streamed, req *http.Request) {
	defer func() {
		if err := recover(); err != nil {
			h.t.Errorf("%s %s: panic: %v\n%s", req.Method, req.RequestURI, err, debug.Stack())
			_ = a.to.CloseWithError(errors.New("the handler panicked"))
		}
		a.WriteHeader(http.StatusOK) // unless there was one
		_, _ = a.to.Close(), req.Body.Close()
	}()
	h.handler.ServeHTTP(a, req)
}

// arrived returns a client's request as a server gets it.
func arrived(req *http.Request) *http.Request {
	in := req.Clone(req.Context())
	in.RequestURI, in.RemoteAddr = req.URL.RequestURI(), "127.0.0.1:40000"
	in.URL, in.Host = &url.URL{Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery}, req.URL.Host
	if req.Host != "" {
		in.Host = req.Host
	}
	if in.Body == nil {
		in.Body = http.NoBody
	}
	return in
}

// answerBody ends its request when the client closes it.
type answerBody struct {
	*io.PipeReader

	cancel context.CancelFunc
}

func (b answerBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// streamed is an answer that its client reads while it is written.
type streamed struct {
	to     *io.PipeWriter
	header http.Header
	began  chan struct{} // closed with the header; what follows is set then
	status int
	sent   http.Header
}

func (a *streamed) Header() http.Header { return a.header }

func (a *streamed) WriteHeader(status int) {
	if a.sent == nil {
		a.status, a.sent = status, maps.Clone(a.header)
		close(a.began)
	}
}

func (a *streamed) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.to.Write(b)
}

func (a *streamed) Flush() { a.WriteHeader(http.StatusOK) }

// pipes is a listener of a bubble, for what a server does with connections.
type pipes struct {
	dialed chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func listenInProcess() *pipes {
	p := &pipes{dialed: make(chan net.Conn)}
	p.closed, p.close = context.WithCancel(context.Background())
	return p
}

// dial returns once the server has the connection.
func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	select {
	case p.dialed <- server:
	case <-p.closed.Done():
		_ = server.Close()
	}
	return client
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.dialed:
		return conn, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.close(); return nil }

func (*pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7070} }

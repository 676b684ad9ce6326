//go:build unix

package s3posix

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
)

// Flaky is a server that can be made to fail.
type Flaky struct {
	URL string

	fault atomic.Pointer[http.HandlerFunc]
	met   atomic.Int32
	proxy *httputil.ReverseProxy
}

// StartFlaky starts a server, and a proxy before it that can fail, for a test.
func StartFlaky(t *testing.T) *Flaky {
	t.Helper()
	behind, err := url.Parse(Start(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	f := &Flaky{proxy: &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(behind)
		r.Out.Host = r.In.Host // the signature includes it
	}}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := f.fault.Load(); fault != nil {
			f.met.Add(1)
			(*fault)(w, r)
			return
		}
		f.Pass(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		transport.CloseIdleConnections()
	})
	f.URL = server.URL
	return f
}

// Break makes the fault answer from now on, and resets the counter.
func (f *Flaky) Break(fault http.HandlerFunc) { f.fault.Store(&fault); f.met.Store(0) }

// Repair makes the server answer again.
func (f *Flaky) Repair() { f.fault.Store(nil) }

// Met returns how many requests met the fault.
func (f *Flaky) Met() int { return int(f.met.Load()) }

// Pass makes the server answer a request.
func (f *Flaky) Pass(w http.ResponseWriter, r *http.Request) { f.proxy.ServeHTTP(w, r) }

// Lose is a fault: the server executes the request, and the answer is lost.
func (f *Flaky) Lose(w http.ResponseWriter, r *http.Request) {
	f.Pass(httptest.NewRecorder(), r)
	Cut(w, r)
}

// Answer is a fault: the server reads the request and refuses it.
func Answer(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
	}
}

// Cut is a fault: the connection is closed.
func Cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

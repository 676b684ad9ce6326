package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/stack"
)

// runLate counts the calls of boto3 whose first attempt changed the object, although it reached the server after its
// retry and a newer upload of the same key were answered, and boto3's wrong results for a bucket whose objects are
// written once. A missing boto3 is a failure only if needed is set.
func runLate(ctx context.Context, needed bool) (wrong int, err error) {
	if out, err := exec.CommandContext(ctx, "/usr/bin/python3", "-c", "import boto3").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "conformance-s3: boto3 is not on this machine: %s\n", out)
		if needed {
			wrong++
		}
		return wrong, nil
	}
	w, err := start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	srv, grants, err := w.granted(ctx)
	if err != nil {
		return 0, err
	}
	judge := func(what, right string, err error) {
		if err != nil {
			wrong++
			right = err.Error()
		}
		fmt.Printf("boto3, %s: %s\n", what, right)
	}
	for _, mode := range []string{"legacy", "standard"} {
		for _, method := range []string{http.MethodPut, http.MethodDelete} {
			judge(mode+" retries, late "+method, "the newer object stays", late(ctx, srv.Addr, grants["current"], mode, method))
		}
	}
	judge("written once", "overwrite and delete are 403 AccessDenied, the object stays", w.once(ctx, srv))
	return wrong, nil
}

func late(ctx context.Context, addr string, keys credentials.Credentials, mode, method string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r := startRelay(addr, method)
	defer r.server.Close()
	relayed, err := startBoto3(ctx, r.server.Listener.Addr().String(), keys, "AWS_RETRY_MODE="+mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, relayed.close()) }()
	direct, err := startBoto3(ctx, addr, keys)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, direct.close()) }()
	object := input{Bucket: bucket, Key: "late-" + mode + "-" + method}
	older, newer := object, object
	older.Body, newer.Body = "older", "newer"
	if method == http.MethodPut {
		_, err = relayed.call(ctx, "PutObject", older)
	} else if _, err = direct.call(ctx, "PutObject", older); err == nil {
		_, err = relayed.call(ctx, "DeleteObject", object)
	}
	if err == nil {
		_, err = direct.call(ctx, "PutObject", newer)
	}
	if err != nil {
		return err
	}
	status, err := r.deliver()
	if err != nil {
		return err
	}
	read, err := direct.call(ctx, "GetObject", object)
	if err != nil || read.Body != newer.Body {
		return fmt.Errorf("the object holds %q, %v after a late attempt that got %d", read.Body, err, status) //nolint:errorlint // it may be nil
	}
	return nil
}

// once lets boto3 write, overwrite, delete and read in a bucket whose objects are written once, under a current grant.
func (w *world) once(ctx context.Context, srv *stack.S3) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	const bucket = "written-once"
	if _, err := srv.Catalog().EnsureBucket(ctx, bucket, objects.BucketRule()); err != nil {
		return err
	}
	if err := srv.Catalog().SetRetention(ctx, bucket, time.Hour); err != nil {
		return err
	}
	keys, err := w.grant(ctx, srv, bucket, 1)
	if err != nil {
		return err
	}
	c, err := startBoto3(ctx, srv.Addr, keys)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	var got []string
	for _, step := range []struct{ operation, key, body string }{
		{"PutObject", "record", "first"}, {"PutObject", "record", "second"}, {"DeleteObject", "record", ""}, {"GetObject", "record", ""}, {"PutObject", "another", "first"},
	} {
		a, err := c.call(ctx, step.operation, input{Bucket: bucket, Key: step.key, Body: step.body})
		got = append(got, a.Body+outcome(err))
	}
	return same("the outcomes", got, []string{"ok", "403 AccessDenied", "403 AccessDenied", "firstok", "ok"})
}

// relay forwards requests to a server. It holds back the first one with a given method: the client sees the connection
// break, and the server gets the request when [relay.deliver] is called.
type relay struct {
	method, to string
	server     *httptest.Server

	mu    sync.Mutex
	kept  *http.Request // the one held back, with its whole body
	count int           // of requests with the method, including the kept one
}

func startRelay(to, method string) *relay {
	r := &relay{method: method, to: to}
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(&url.URL{Scheme: "http", Host: to})
		p.Out.Host = p.In.Host // the signature includes it
	}}
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == method && r.holds(req) {
			panic(http.ErrAbortHandler) // the documented way to break the connection
		}
		proxy.ServeHTTP(w, req)
	}))
	return r
}

// holds keeps the request if it is the first with the method.
func (r *relay) holds(req *http.Request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count++; r.count > 1 {
		return false
	}
	if body, err := io.ReadAll(req.Body); err == nil { // else deliver reports that there is none
		r.kept = req.Clone(context.Background())
		r.kept.Body, r.kept.RequestURI = io.NopCloser(bytes.NewReader(body)), ""
		r.kept.URL.Scheme, r.kept.URL.Host = "http", r.to
	}
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

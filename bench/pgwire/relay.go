package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/child"
)

// relayFlags make this program run as one of the relays.
type relayFlags struct{ kind, listen, control, upstream string }

func (f *relayFlags) register() {
	flag.StringVar(&f.kind, "relay", "", "be a relay, ours or iocopy: for this program's own use, with -listen, -control, -upstream")
	flag.StringVar(&f.listen, "listen", "", "")
	flag.StringVar(&f.control, "control", "", "")
	flag.StringVar(&f.upstream, "upstream", "", "")
}

func startRelay(kind, listen, control, upstream string) (*child.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return child.Start(child.Spec{Path: self, Args: []string{"-relay", kind, "-listen", listen, "-control", control, "-upstream", upstream}, Log: os.Stderr})
}

func (f *relayFlags) run(ctx context.Context) error {
	ln, err := net.Listen("tcp", f.listen)
	if err != nil {
		return err
	}
	if f.control != "" {
		go func() { exitOn(serveControl(f.control)) }()
	}
	if f.kind == "iocopy" {
		return copyRelay(ln, f.upstream)
	}
	offered, err := ownTLS()
	if err != nil {
		return err
	}
	srv, err := pgwire.New(pgwire.Config{Addr: f.upstream, TLS: offered, Options: pgwire.Options{MaxConnections: 20_000}, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		return err
	}
	return srv.Serve(ctx, ln)
}

// serveControl serves how many objects the process has allocated.
func serveControl(addr string) error {
	server := http.Server{Addr: addr, ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		_, _ = fmt.Fprint(w, m.Mallocs)
	})}
	return server.ListenAndServe()
}

func mallocs(ctx context.Context, control string) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+control, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// copyRelay is the minimal relay in Go. Between TCP connections
// io.Copy splices on Linux: the bytes do not enter the process.
func copyRelay(ln net.Listener, upstream string) error {
	for {
		client, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = client.Close() }()
			server, err := net.Dial("tcp", upstream)
			if err != nil {
				return
			}
			defer func() { _ = server.Close() }()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = io.Copy(server, client)
				_ = server.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(client, server)
			_ = client.Close()
			<-ended
		}()
	}
}

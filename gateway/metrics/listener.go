package metrics

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
)

// maxScrapers bounds the open connections of the metrics listener.
const maxScrapers = 64

// Serve serves /metrics and nothing else on a listener of its own, to every client that reaches it. It ends with the
// API, so that scrapes see the whole stop.
func (r *Registry) Serve(ctx context.Context, ln net.Listener) error {
	const patience = 10 * time.Second
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", r.Handler())
	srv := &http.Server{
		Handler: mux, ReadTimeout: patience, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	api.LimitConnections(srv, maxScrapers, func() {})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		_ = srv.Close() // a slower scrape is cut off
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

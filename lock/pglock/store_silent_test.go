package pglock_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock/pglock"
)

// silent makes connections die silently: what they send is dropped, and no answer comes. New ones work.
type silent struct {
	mu         sync.Mutex
	generation int
	open       []net.Conn
	pipes      sync.WaitGroup
}

func (s *silent) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

func (s *silent) killAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation++
}

// end closes all connections.
func (s *silent) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.open {
		_ = conn.Close()
	}
}

// dial puts a pipe between the client and the server.
func (s *silent) dial(server pgx.ConnConfig) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		up, err := server.DialFunc(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		client, down := net.Pipe()
		s.mu.Lock()
		s.open = append(s.open, up)
		born := s.generation
		s.mu.Unlock()
		for _, ends := range [][2]net.Conn{{up, down}, {down, up}} {
			s.pipes.Go(func() {
				defer ends[0].Close()
				_, _ = io.Copy(writer{ends[0], func() bool { return s.now() == born }}, ends[1])
			})
		}
		return client, nil
	}
}

type writer struct {
	net.Conn
	alive func() bool
}

func (w writer) Write(p []byte) (int, error) {
	if !w.alive() {
		return len(p), nil
	}
	return w.Conn.Write(p)
}

// silentPool is a pool with four idle connections. It pings them, or not, before it gives them out.
func (w world) silentPool(t *testing.T, pings bool) (*pgxpool.Pool, *silent) {
	t.Helper()
	config, err := pgxpool.ParseConfig(w.locker)
	if err != nil {
		t.Fatal(err)
	}
	pgfence.Configure(config)
	s := &silent{}
	config.MaxConns = 4
	config.ConnConfig.DialFunc = s.dial(*config.ConnConfig)
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return pings }
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end()
		p.Close()
		s.pipes.Wait()
	})
	var all []*pgxpool.Conn
	for range config.MaxConns {
		conn, err := p.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	for _, conn := range all {
		conn.Release()
	}
	return p, s
}

func TestALeaseOutlivesConnectionsThatDieSilently(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, pings := range map[string]bool{"the pool pings": true, "the pool does not ping": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, network := w.silentPool(t, pings)
			s, err := pglock.New(pglock.Config{Pool: p})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			lease, err := leasing.One(s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: name, TTL: ttl}))
			if err != nil {
				t.Fatal(err)
			}
			network.killAll()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if _, err := s.Extend(ctx, lease.Ref(), ttl); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestInspectionsOutliveConnectionsThatDieSilently(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, inspect := range map[string]func(ctx context.Context, s *pglock.Source) error{
		"Inspect": func(ctx context.Context, s *pglock.Source) error { _, err := s.Inspect(ctx, "r", "s"); return err },
		"Ready":   func(ctx context.Context, s *pglock.Source) error { _, err := s.Ready(ctx); return err },
	} {
		for how, pings := range map[string]bool{"the pool pings": true, "the pool does not ping": false} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				p, network := w.silentPool(t, pings)
				s, err := pglock.New(pglock.Config{Pool: p})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				network.killAll()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				if err := inspect(ctx, s); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestALeaseIsTakenDespiteConnectionsThatDiedSilently(t *testing.T) {
	t.Parallel()
	w := setup(t)
	p, network := w.silentPool(t, true)
	s := source(t, pglock.Config{Pool: p})
	network.killAll()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := s.Acquire(ctx, leasing.AtOnce, leasing.Request{Resource: "free", TTL: ttl}); err != nil {
		t.Error(err)
	}

	w.exec(t, `SELECT fence.take_lease('r', 'another', 3600000000, sha256('seal'), '', false)`)
	acquired := make(chan error, 1)
	go func() { // a waiter's request is not grouped
		_, err := s.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl})
		acquired <- err
	}()
	until(t, "it waits", func() bool { return w.waiters(t) == 1 })
	network.killAll()
	w.exec(t, `SELECT fence.free_leases(ARRAY['r'], ARRAY['another'])`)
	if err := <-acquired; err != nil {
		t.Errorf("a waiter: %v", err)
	}
}

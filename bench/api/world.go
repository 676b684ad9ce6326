package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
	"github.com/fencegate/fencegate/migrate"
)

const (
	ttl = 30 * time.Second
	// nodeTimeout is long: on a busy machine a slow answer is no failure.
	nodeTimeout = 5 * time.Second
)

// contender takes leases in one way.
type contender struct {
	name string
	// cycle acquires and releases a resource without contention.
	cycle func(ctx context.Context, caller int, resource string) error
}

// world is a PostgreSQL, Redis nodes and a gateway for the benchmark.
type world struct {
	pg      *pgserver.Server
	nodes   []*redisserver.Server
	pool    *pgxpool.Pool
	locker  *lock.Locker
	gateway *gateway.Gateway
	api     string
	client  *client.Client
	raw     []*raw // one per caller
}

// startPostgres starts a server whose commits are durable.
func startPostgres(ctx context.Context) (*pgserver.Server, error) {
	dir, err := os.MkdirTemp("", "bench-api-")
	if err != nil {
		return nil, err
	}
	if err = os.Chmod(dir, 0o711); err != nil { // as root, PostgreSQL runs as another user
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	pg, err := pgserver.Start(ctx, pgserver.Config{Dir: dir, Ephemeral: true, Settings: map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "512MB",
		"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "16GB", "jit": "off",
	}})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return pg, nil
}

func start(ctx context.Context, nodes, callers int) (w *world, err error) {
	w = &world{}
	if w.pg, err = startPostgres(ctx); err != nil {
		return w, err
	}
	if err = migrate.Up(ctx, w.pg.URL("postgres"), migrate.All); err != nil {
		return w, err
	}
	login, err := w.login(ctx)
	if err != nil {
		return w, err
	}
	var members []lock.Node
	for range nodes {
		s, err := redisserver.Start(ctx, redisserver.Config{})
		if err != nil {
			return w, err
		}
		w.nodes = append(w.nodes, s)
		members = append(members, lock.Node{Addr: s.Addr})
	}
	if w.pool, err = pgxpool.New(ctx, login); err != nil {
		return w, err
	}
	if w.locker, err = lock.New(lock.Config{Nodes: members, KeyPrefix: lock.Prefix("library"), NodeTimeout: nodeTimeout, Armer: pgfence.New(w.pool)}); err != nil {
		return w, err
	}
	if err = admin.Of(w.locker).Init(ctx); err != nil {
		return w, err
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	w.gateway, err = gateway.New(gateway.Config{
		PostgresURL: login, RedisNodes: members, InitNodes: true, NodeTimeout: nodeTimeout, MasterKey: "bench:" + hex.EncodeToString(key), APIListen: "127.0.0.1:0",
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return w, err
	}
	if err = w.gateway.Start(ctx); err != nil {
		return w, err
	}
	w.api = w.gateway.Addrs().API
	if w.client, err = client.New(client.Config{URL: "http://" + w.api, HTTPClient: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: callers, DisableCompression: true,
	}}}); err != nil {
		return w, err
	}
	w.raw = make([]*raw, callers)
	return w, nil
}

// login creates the gateway's login, and returns its URL.
func (w *world) login(ctx context.Context) (string, error) {
	u, err := url.Parse(w.pg.URL("postgres"))
	if err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, w.pg.URL("postgres"))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	password := rand.Text()
	u.User = url.UserPassword("bench_gateway", password)
	_, err = conn.Exec(ctx, "CREATE ROLE bench_gateway LOGIN PASSWORD '"+password+"' IN ROLE fence_gateway")
	return u.String(), err
}

func (w *world) close() (err error) {
	for _, r := range w.raw {
		if r != nil {
			_ = r.conn.Close()
		}
	}
	if w.gateway != nil {
		err = w.gateway.Stop()
	}
	if w.locker != nil {
		err = errors.Join(err, w.locker.Close())
	}
	if w.pool != nil {
		w.pool.Close()
	}
	for _, s := range w.nodes {
		err = errors.Join(err, s.Close())
	}
	if w.pg != nil {
		err = errors.Join(err, w.pg.Kill()) // no data is kept
	}
	return err
}

func (w *world) contenders() []*contender {
	return []*contender{
		{name: "library", cycle: func(ctx context.Context, _ int, resource string) error {
			lease, err := w.locker.TryAcquire(ctx, resource, lock.WithTTL(ttl))
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		}},
		{name: "http", cycle: func(_ context.Context, caller int, resource string) (err error) {
			if w.raw[caller] == nil {
				if w.raw[caller], err = dial(w.api); err != nil {
					return err
				}
			}
			return w.raw[caller].cycle(resource)
		}},
		{name: "client", cycle: func(ctx context.Context, _ int, resource string) error {
			lease, err := w.client.Acquire(ctx, client.AcquireRequest{Resource: resource, TTL: ttl})
			if err != nil {
				return err
			}
			return w.client.Release(ctx, lease.Handle)
		}},
	}
}

// raw is a connection with a minimal HTTP/1.1 client.
type raw struct {
	host string
	conn net.Conn
	in   *bufio.Reader
}

func dial(addr string) (*raw, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &raw{host: addr, conn: conn, in: bufio.NewReader(conn)}, nil
}

func (r *raw) cycle(resource string) error {
	var lease struct {
		Handle string `json:"handle"`
	}
	status, body, err := r.post("/v1/leases", `{"resource":"`+resource+`","ttl":"`+ttl.String()+`"}`)
	if err == nil && status != http.StatusCreated {
		err = fmt.Errorf("acquire %q: status %d: %s", resource, status, body)
	}
	if err == nil {
		err = json.Unmarshal(body, &lease)
	}
	if err != nil {
		return err
	}
	status, body, err = r.post("/v1/leases/release", `{"handle":"`+lease.Handle+`"}`)
	if err == nil && status != http.StatusNoContent {
		err = fmt.Errorf("release %q: status %d: %s", resource, status, body)
	}
	return err
}

// post sends a request and reads its answer.
func (r *raw) post(path, body string) (status int, answer []byte, err error) {
	request := "POST " + path + " HTTP/1.1\r\nHost: " + r.host + "\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
	if _, err = io.WriteString(r.conn, request); err != nil {
		return 0, nil, err
	}
	length := 0
	for first := true; ; first = false {
		line, err := r.in.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		text := strings.TrimRight(string(line), "\r\n")
		switch name, value, _ := strings.Cut(text, ":"); {
		case first:
			if _, err := fmt.Sscanf(text, "HTTP/1.1 %d", &status); err != nil {
				return 0, nil, fmt.Errorf("%q: %w", text, err)
			}
		case text == "":
			answer = make([]byte, length)
			_, err = io.ReadFull(r.in, answer)
			return status, answer, err
		case strings.EqualFold(name, "Content-Length"):
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return 0, nil, err
			}
		}
	}
}

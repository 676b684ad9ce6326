package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/lock"
)

// apiSubject measures the cost of a lease over HTTP compared with the library: acquire and release without contention,
// with the fence, on real PostgreSQL and Redis nodes.
//
//   - library: package lock and package pgfence, in this process
//   - http: the gateway's HTTP API over loopback, with a client of minimal cost (raw HTTP/1.1)
//   - client: the same, with package client
//
// The gateway runs in this process too, so all of them share its processors. The goal is held at 128 callers.
func apiSubject() subject {
	return subject{name: "api", workers: []int{1, 16, 128}, slice: 700 * time.Millisecond, rounds: 7, contenders: []string{"library", "http", "client"}, parts: []part{{name: "leases", run: apiLeases}}}
}

func apiLeases(ctx context.Context, b *bench, s *stack.Stack) {
	contenders := apiContenders(ctx, s, slices.Max(b.Workers))
	for _, callers := range b.Workers {
		results := b.Measure(ctx, run.Cell{Name: fmt.Sprintf("leases.c%d", callers), Workers: callers}, contenders...)
		if callers == 128 {
			b.AtLeast("api.c128", results, "http", "library", 0.7)
		}
	}
}

func apiContenders(ctx context.Context, s *stack.Stack, callers int) []run.Contender {
	pg, nodes := run.Must(s.Postgres(ctx, stack.PostgresConfig{Durable: true})), run.Must(s.Redis(ctx, 3))
	const nodeTimeout = 5 * time.Second // on a busy machine a slow answer is no failure
	library := fencegate("library", opened(ctx, s, nodes, lock.Config{KeyPrefix: lock.Prefix("library"), NodeTimeout: nodeTimeout, Armer: pgfence.New(gatewayPool(ctx, s, pg, 4))}))
	api := run.Must(s.InProcess(ctx, gateway.Config{
		PostgresURL: pg.As(stack.Gateway), RedisNodes: nodes.Nodes(), NodeTimeout: nodeTimeout,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})).Addrs().API
	raws, c := make([]*raw, callers), newClient(api, "", callers)
	var all []run.Contender
	for _, one := range []struct {
		name  string
		cycle func(ctx context.Context, caller int, resource string) error
	}{
		{"library", func(ctx context.Context, _ int, resource string) error { return library.cycle(ctx, resource) }},
		{"http", func(_ context.Context, caller int, resource string) (err error) {
			if raws[caller] == nil {
				if raws[caller], err = dialRaw(api); err != nil {
					return err
				}
			}
			return raws[caller].cycle(resource)
		}},
		{"client", func(ctx context.Context, _ int, resource string) error { return overHTTP(ctx, c, resource) }},
	} {
		all = append(all, run.Contender{Name: one.name, Op: func(ctx context.Context, caller int, n int64) error {
			return one.cycle(ctx, caller, fmt.Sprintf("bench/%s/%d/%d", one.name, caller, n%16))
		}})
	}
	return all
}

// newClient returns a client of a gateway's HTTP API with connections for all callers.
func newClient(api, token string, callers int) *client.Client {
	return run.Must(client.New(client.Config{URL: "http://" + api, Token: token, HTTPClient: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: callers, DisableCompression: true,
	}}}))
}

// overHTTP acquires and releases a resource by package client.
func overHTTP(ctx context.Context, c *client.Client, resource string) error {
	lease, err := c.Acquire(ctx, client.AcquireRequest{Resource: resource, TTL: ttl})
	if err != nil {
		return err
	}
	return c.Release(ctx, lease.Handle)
}

// raw is a connection with a minimal HTTP/1.1 client.
type raw struct {
	host string
	conn net.Conn
	in   *bufio.Reader
}

func dialRaw(addr string) (*raw, error) {
	conn, err := net.Dial("tcp", addr)
	return &raw{host: addr, conn: conn, in: bufio.NewReader(conn)}, err
}

func (r *raw) cycle(resource string) error {
	var lease struct {
		Handle string `json:"handle"`
	}
	body, err := r.post("/v1/leases", `{"resource":"`+resource+`","ttl":"`+ttl.String()+`"}`, http.StatusCreated)
	if err == nil {
		err = json.Unmarshal(body, &lease)
	}
	if err == nil {
		_, err = r.post("/v1/leases/release", `{"handle":"`+lease.Handle+`"}`, http.StatusNoContent)
	}
	return err
}

// post sends a request and reads its answer, which has to have a status.
func (r *raw) post(path, body string, want int) (answer []byte, err error) {
	request := "POST " + path + " HTTP/1.1\r\nHost: " + r.host + "\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
	if _, err = io.WriteString(r.conn, request); err != nil {
		return nil, err
	}
	status, length := 0, 0
	for first := true; ; first = false {
		line, err := r.in.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		text := strings.TrimRight(string(line), "\r\n")
		switch name, value, _ := strings.Cut(text, ":"); {
		case first:
			if _, err := fmt.Sscanf(text, "HTTP/1.1 %d", &status); err != nil {
				return nil, fmt.Errorf("%q: %w", text, err)
			}
		case text == "":
			answer = make([]byte, length)
			if _, err = io.ReadFull(r.in, answer); err == nil && status != want {
				err = fmt.Errorf("%s: status %d: %s", path, status, answer)
			}
			return answer, err
		case strings.EqualFold(name, "Content-Length"):
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return nil, err
			}
		}
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/redisserver"
)

const (
	bucket   = "compare"
	database = "compare"
	password = "compare"
	bearer   = "compare-bearer-token"
)

// side is one gateway with its services. It is used through its
// ports only, because the other side may be of any version.
type side struct {
	dir, binary string
	pg          *pgserver.Server
	redis       *redisserver.Server
	gateway     *child.Process
	log         *os.File
	api, s3, pq string // addresses

	http     *http.Client
	signer   *v4.Signer
	keys     keys
	sessions []*pgx.Conn // one per client
	counts   []int64     // operations per client
}

type keys struct {
	Access  string `json:"access_key_id"`
	Secret  string `json:"secret_access_key"`
	Session string `json:"session_token"`
}

type lease struct {
	Grant  string `json:"grant"`
	Handle string `json:"handle"`
}

// startSide starts a gateway and stores the data for the reads.
func startSide(ctx context.Context, dir, binary string, clients int) (s *side, err error) {
	s = &side{
		dir: dir, binary: binary, signer: v4.NewSigner(), counts: make([]int64, clients),
		http: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 2 * clients, DisableCompression: true}},
	}
	if err = os.Mkdir(dir, 0o711); err != nil {
		return nil, err
	}
	if s.redis, err = redisserver.Start(ctx, redisserver.Config{}); err != nil {
		return s, err
	}
	s.pg, err = pgserver.Start(ctx, pgserver.Config{Dir: filepath.Join(dir, "pg"), Ephemeral: true, Fast: true, Settings: map[string]string{
		"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "4GB", "jit": "off", "shared_buffers": "128MB",
	}})
	if err != nil {
		return s, err
	}
	if err = s.migrate(ctx); err != nil {
		return s, err
	}
	if err = s.serve(ctx); err != nil {
		return s, err
	}
	return s, s.fill(ctx, clients)
}

func (s *side) migrate(ctx context.Context) error {
	if err := s.exec(ctx, "postgres", "CREATE DATABASE "+database); err != nil {
		return err
	}
	up := exec.CommandContext(ctx, s.binary, "migrate", "up")
	up.Env = append(os.Environ(), "FENCEGATE_POSTGRES_URL="+s.pg.URL(database))
	if out, err := up.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate up: %w: %s", err, out)
	}
	return s.exec(ctx, database,
		"CREATE ROLE gateway LOGIN PASSWORD '"+password+"' IN ROLE fence_gateway", "CREATE ROLE app LOGIN PASSWORD '"+password+"' IN ROLE fence_writer",
		"CREATE TABLE compare (id int PRIMARY KEY, status text)", "CREATE TABLE compare_log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status text)",
		fmt.Sprintf("INSERT INTO compare SELECT n, 'new' FROM generate_series(0, %d) n", objects), "SELECT fence.protect('compare_log', resource => 'compare')",
		"GRANT SELECT, INSERT ON compare, compare_log TO app", "ANALYZE")
}

func (s *side) exec(ctx context.Context, database string, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.pg.URL(database))
	if err != nil {
		return err
	}
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", sql, err), conn.Close(ctx))
		}
	}
	return conn.Close(ctx)
}

func (s *side) serve(ctx context.Context) (err error) {
	for name, content := range map[string]string{"master": "compare:" + strings.Repeat("4f", 32), "token": bearer, "secret": password} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	for _, addr := range []*string{&s.api, &s.s3, &s.pq} {
		port, err := child.FreePort()
		if err != nil {
			return err
		}
		*addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "log")); err != nil {
		return err
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword("gateway", password), Host: s.pg.Addr(), Path: "/" + database, RawQuery: "sslmode=disable"}
	s.gateway, err = child.Start(child.Spec{
		Path: s.binary, StopSignal: syscall.SIGTERM, Log: s.log, Env: append(os.Environ(), "FENCEGATE_POSTGRES_URL="+u.String()),
		Args: []string{
			"serve", "--max-ttl", "1h", "--node-timeout", "5s", "--redis", s.redis.Addr, "--init", "--master-key-file", filepath.Join(s.dir, "master"), "--token-file", filepath.Join(s.dir, "token"),
			"--api-listen", s.api, "--pg-listen", s.pq, "--s3-listen", s.s3, "--blobs", filepath.Join(s.dir, "blobs"),
			"--s3-access-key", "root", "--s3-secret-key-file", filepath.Join(s.dir, "secret"),
		},
	})
	if err != nil {
		return err
	}
	for {
		err := s.ask(ctx, http.MethodGet, "/readyz", nil, nil)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.gateway.Done():
			return fmt.Errorf("the gateway ended: %w", s.gateway.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// fill acquires the lease of the bucket and the table, creates the objects for the reads, and opens the sessions.
func (s *side) fill(ctx context.Context, clients int) error {
	if err := s.ask(ctx, http.MethodPut, "/v1/buckets/"+bucket, map[string]string{"rule": "bucket"}, nil); err != nil {
		return err
	}
	l, err := s.acquire(ctx, bucket)
	for began := time.Now(); err != nil && time.Since(began) < 30*time.Second; l, err = s.acquire(ctx, bucket) { // the node is not admitted yet
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	if err := s.ask(ctx, http.MethodPost, "/v1/leases/credentials", map[string]string{"handle": l.Handle}, &s.keys); err != nil {
		return err
	}
	for n := range objects {
		if err := s.object(ctx, http.MethodPut, fmt.Sprintf("/%s/get/%04d", bucket, n), small); err != nil {
			return err
		}
	}
	cfg, err := pgx.ParseConfig(fmt.Sprintf("postgres://app:%s@%s/%s?sslmode=disable", password, s.pq, database))
	if err != nil {
		return err
	}
	cfg.RuntimeParams["fence.resource"], cfg.RuntimeParams["fence.token"] = bucket, l.Grant
	for range clients {
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			return err
		}
		s.sessions = append(s.sessions, conn)
	}
	return nil
}

func (s *side) acquire(ctx context.Context, resource string) (l lease, err error) {
	err = s.ask(ctx, http.MethodPost, "/v1/leases", map[string]string{"resource": resource, "ttl": "1h"}, &l)
	return l, err
}

// ask calls the HTTP API, and expects success.
func (s *side) ask(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if in == nil {
		body = nil
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.api+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	req.Header.Set("Content-Type", "application/json")
	res, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s: %d %.300s", method, path, res.StatusCode, text)
	}
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(text, out)
}

// logTail returns the end of the gateway's log, for an error.
func (s *side) logTail() string {
	if s == nil || s.log == nil {
		return ""
	}
	text, _ := os.ReadFile(s.log.Name())
	return "\n" + string(text[max(0, len(text)-1000):])
}

func (s *side) close() (err error) {
	s.http.CloseIdleConnections()
	for _, conn := range s.sessions {
		_ = conn.Close(context.Background())
	}
	if s.gateway != nil {
		s.gateway.Stop(5 * time.Second)
	}
	if s.log != nil {
		_ = s.log.Close()
	}
	if s.pg != nil {
		err = s.pg.Kill()
	}
	if s.redis != nil {
		err = errors.Join(err, s.redis.Close())
	}
	return err
}

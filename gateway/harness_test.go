//go:build unix

package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

func TestMain(m *testing.M) {
	testenv.VerifyMain(m)
}

var masterKey = "k1:" + strings.Repeat("5a", 32)

// config returns the configuration of a gateway with services of its own.
func config(t *testing.T, pg testenv.PG) gateway.Config {
	t.Helper()
	redis := testenv.Redis(t, 3)
	cfg := gateway.Config{
		PostgresURL: pg.GatewayURL, SQLURL: pg.WriterURL, KeyPrefix: redis.Prefix, InitNodes: true,
		MasterKey: masterKey, APIListen: "127.0.0.1:0", PGListen: "127.0.0.1:0", S3Listen: "127.0.0.1:0",
		BlobDir: t.TempDir(), Buckets: map[string]string{"orders": "prefix:1"}, MaxTTL: time.Minute,
		NodeTimeout: 10 * time.Second, // the machine may be busy with other tests
		Logger:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, addr := range redis.Addrs {
		cfg.RedisNodes = append(cfg.RedisNodes, lock.Node{Addr: addr})
	}
	return cfg
}

func start(t *testing.T, cfg gateway.Config) *client {
	t.Helper()
	g, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{t: t, g: g, cfg: cfg, http: &http.Client{Transport: transport}}
}

// client calls a gateway's API.
type client struct {
	t     *testing.T
	g     *gateway.Gateway
	cfg   gateway.Config
	http  *http.Client
	token string
}

type answer struct {
	Status int
	Body   map[string]any
}

func (a answer) text(name string) string { s, _ := a.Body[name].(string); return s }

func (c *client) do(method, path string, body any, headers ...string) answer {
	c.t.Helper()
	payload, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+c.g.Addrs().API+path, bytes.NewReader(payload))
	if err != nil {
		c.t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	a := answer{Status: resp.StatusCode}
	if resp.StatusCode != http.StatusNoContent {
		if err := json.NewDecoder(resp.Body).Decode(&a.Body); err != nil {
			c.t.Fatalf("%s %s: %d: %v", method, path, resp.StatusCode, err)
		}
	}
	return a
}

// want makes a call that must be answered with status.
func (c *client) want(status int, method, path string, body any, headers ...string) answer {
	c.t.Helper()
	a := c.do(method, path, body, headers...)
	if a.Status != status {
		c.t.Fatalf("%s %s: %d %v; want %d", method, path, a.Status, a.Body, status)
	}
	return a
}

type lease struct{ resource, token, grant, handle string }

// acquire takes a lease that must be available. A node may answer late on a busy machine, or a release be on its way to
// it: the gateway waits for that, but for no lease of usual length to run out.
func (c *client) acquire(resource, ttl string) lease {
	c.t.Helper()
	a := c.want(http.StatusCreated, "POST", "/v1/leases", map[string]string{"resource": resource, "ttl": ttl, "wait": "20s", "holder": "test"})
	return lease{resource: resource, token: a.text("token"), grant: a.text("grant"), handle: a.text("handle")}
}

// armed raises a resource's fence for a grant whose lease this test does not need.
func armed(t *testing.T, pg testenv.PG, resource string) lease {
	t.Helper()
	grant := fence.Grant{Resource: resource, Token: 1, Seal: fence.NewSeal()}
	arming := fence.Arming{Resource: resource, Token: grant.Token, SealHash: grant.Seal.Hash(), Holder: "test"}
	if err := pgfence.New(testenv.PoolOf(t, pg.GatewayURL)).Arm(t.Context(), arming); err != nil {
		t.Fatal(err)
	}
	return lease{resource: resource, token: grant.Token.String(), grant: grant.Presented()}
}

// runOut ends a lease as the end of its TTL does: at the Redis nodes, or in PostgreSQL, and at this gateway. Nobody waits
// for a TTL that must be long enough for a busy machine.
func (c *client) runOut(l lease, pg testenv.PG) {
	c.t.Helper()
	if c.cfg.PostgresLeases {
		if _, err := pg.Pool(c.t).Exec(c.t.Context(), "UPDATE fence.leases SET ends_at = clock_timestamp() WHERE resource = $1", l.resource); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, n := range c.cfg.RedisNodes {
		node := redis.NewClient(&redis.Options{Addr: n.Addr})
		err := node.Del(c.t.Context(), c.cfg.KeyPrefix+":lock:"+l.resource).Err()
		if err := errors.Join(err, node.Close()); err != nil {
			c.t.Fatal(err)
		}
	}
	c.g.PassDeadline(l.resource)
}

// initialise admits the nodes. A query of them has a second, which is too short on a busy machine.
func initialise(t *testing.T, l *lock.Locker) {
	t.Helper()
	testenv.Eventually(t, "the nodes are admitted", func() error { return admin.Of(l).Init(t.Context()) })
}

// portConfig is a configuration of the PostgreSQL port with these startup options.
func (c *client) portConfig(pg testenv.PG, options string) *pgx.ConnConfig {
	c.t.Helper()
	cfg, err := pgx.ParseConfig(pg.WriterURL)
	if err != nil {
		c.t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(c.g.Addrs().PG)
	number, _ := strconv.ParseUint(port, 10, 16)
	cfg.Host, cfg.Port = host, uint16(number)
	cfg.RuntimeParams["options"] = options
	return cfg
}

// connect opens a session through the PostgreSQL port with the grant in its startup options, as PGOPTIONS does.
func (c *client) connect(pg testenv.PG, l lease) *pgx.Conn {
	c.t.Helper()
	options := fmt.Sprintf("-c fence.resource=%s -c fence.token=%s", fence.EscapeResource(l.resource), l.grant)
	conn, err := pgx.ConnectConfig(c.t.Context(), c.portConfig(pg, options))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(c.t.Context())) })
	return conn
}

// upload puts an object with the lease's own credentials.
func (c *client) upload(l lease, key, body string) error {
	c.t.Helper()
	creds := c.want(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": l.handle})
	return c.put(creds, key, body)
}

func (c *client) put(creds answer, key, body string, o ...func(*awss3.Options)) error {
	s3 := awss3.New(awss3.Options{
		Region: creds.text("region"), BaseEndpoint: aws.String(creds.text("endpoint_url")), UsePathStyle: true, HTTPClient: c.http,
		Credentials: credentials.NewStaticCredentialsProvider(creds.text("access_key_id"), creds.text("secret_access_key"), creds.text("session_token")),
	})
	_, err := s3.PutObject(c.t.Context(), &awss3.PutObjectInput{Bucket: aws.String("orders"), Key: aws.String(key), Body: strings.NewReader(body)}, o...)
	return err
}

// guarded creates the table orders, whose writes need the resource orders/1001.
func guarded(t *testing.T, pg testenv.PG) {
	t.Helper()
	pool := pg.Pool(t)
	for _, sql := range []string{
		"CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL)",
		"INSERT INTO orders VALUES (1001, 'new')",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO fence_writer",
		"SELECT fence.protect('orders', resource => 'orders/1001')",
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

const updateOrder = "UPDATE orders SET status = $1 WHERE id = 1001"

func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return fmt.Sprint(err)
}

// noLeases is not a source.
func noLeases(leasing.Armer) (leasing.Source, error) { return nil, errors.New("none") }

// sourceOfItsOwn gives a gateway a source by Config.Leases, over the configured nodes.
func sourceOfItsOwn(t *testing.T, cfg *gateway.Config) {
	t.Helper()
	nodes, prefix := cfg.RedisNodes, cfg.KeyPrefix
	cfg.RedisNodes = nil
	cfg.Leases = func(armer leasing.Armer) (leasing.Source, error) {
		l, err := lock.New(lock.Config{Nodes: nodes, KeyPrefix: lock.Prefix(prefix), Armer: armer, NodeTimeout: 10 * time.Second, MaxTTL: time.Minute})
		if err != nil {
			return nil, err
		}
		initialise(t, l)
		return l.Source(), nil
	}
}

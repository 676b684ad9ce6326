//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// A gateway that starts while its Redis nodes are away serves what needs no lease, reports what is missing, and grants
// leases once the nodes are back.
func TestAGatewayThatStartsWithoutRedisServesTheRest(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	cfg := config(t, pg)
	cfg.S3.RootAccessKey, cfg.S3.RootSecretKey = "reader", "its secret key"
	cfg.MaxTTL = 3 * time.Second // the quarantine of nodes that are new to a database with fences
	held := armed(t, pg, "orders/1001")
	nodes := testenv.OwnRedis(t, 3)
	late := cfg
	late.RedisNodes, late.BlobDir, late.StartTimeout = nil, t.TempDir(), time.Minute
	late.Buckets = map[string]string{"late": "prefix:1"}
	for _, n := range nodes {
		late.RedisNodes = append(late.RedisNodes, lock.Node{Addr: n.Addr})
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	log := &logged{}
	late.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(log, t.Output()), nil))
	c := start(t, late)

	for _, call := range [][2]string{{"GET", "/readyz"}, {"POST", "/v1/leases"}} {
		a := c.want(http.StatusServiceUnavailable, call[0], call[1], map[string]string{"resource": "r"})
		if a.text("code") != "unavailable" || a.text("part") != "redis" {
			t.Errorf("%s: %v", call[1], a.Body)
		}
	}
	if lines := log.lines("the gateway is not ready"); len(lines) == 0 || !strings.Contains(lines[0], nodes[0].Addr) {
		t.Errorf("the log: %q", lines)
	}
	if _, err := c.connect(pg, held).Exec(t.Context(), updateOrder, "without redis"); err != nil {
		t.Errorf("a fenced write: %v", err)
	}
	if err := listed(t, c, late.S3.RootAccessKey, late.S3.RootSecretKey, "late"); err != nil {
		t.Errorf("a read of the S3 port: %v", err)
	}

	if len(log.lines("leases are granted")) > 0 {
		t.Error("the log says that leases are granted, without nodes")
	}
	for _, n := range nodes {
		if err := n.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	untilReady(c)
	testenv.Eventually(t, "the log says that leases are granted", func() bool { return len(log.lines("leases are granted")) == 1 })
}

func listed(t *testing.T, c *client, access, secret, bucket string) error {
	t.Helper()
	s3 := awss3.New(awss3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://" + c.g.Addrs().S3), UsePathStyle: true, HTTPClient: c.http,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, ""),
	})
	_, err := s3.ListObjectsV2(t.Context(), &awss3.ListObjectsV2Input{Bucket: aws.String(bucket)})
	return err
}

func TestAStartThatWaitsForRedisEndsWhenAsked(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	nodes := testenv.OwnRedis(t, 1)
	if err := nodes[0].Freeze(); err != nil { // looks like a busy machine
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nodes[0].Thaw() })
	cfg.RedisNodes, cfg.StartTimeout, cfg.NodeTimeout = []lock.Node{{Addr: nodes[0].Addr}}, time.Hour, time.Second
	g, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := g.Start(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, %v", err, g.Stop())
	}
}

//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/continuity"
)

// program is a Go program in the gateway's group, with a locker of its own.
func (c *cluster) program(t *testing.T, nodes []lock.Node, prefix string) (*lock.Locker, *continuity.Armer) {
	t.Helper()
	pool, err := pgxpool.ParseConfig(c.as("gate"))
	if err != nil {
		t.Fatal(err)
	}
	armer, err := continuity.Open(t.Context(), continuity.Config{Pool: pool, Nodes: nodes, KeyPrefix: lock.Prefix(prefix)})
	if err != nil {
		t.Fatal(err)
	}
	locker, err := lock.New(lock.Config{Nodes: nodes, KeyPrefix: lock.Prefix(prefix), Armer: armer, Epochs: armer, NodeTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(); _ = armer.Close() })
	return locker, armer
}

func TestAProgramAndAGatewayOfOneGroupAgreeThatPostgreSQLMayHaveForgotten(t *testing.T) {
	t.Parallel()
	server := startCluster(t)
	cfg := server.gateway(t)
	c := start(t, cfg)
	backup := testenv.ServerDir(t)
	if err := server.CopyTo(t.Context(), backup, false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	// The program arms a fence that the backup lacks. Only the nodes tell the gateway.
	locker, armer := server.program(t, cfg.RedisNodes, cfg.KeyPrefix)
	lease, err := locker.TryAcquire(ctx, "orders/1001")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lease.Release(ctx), locker.Close(), armer.Close()); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	restored := run(t, backup)
	server.at.moveTo(restored.Addr())
	wantForgotten(c, "fencegate fence invalidate-all --yes")

	// The other way round: a program that starts now learns it only from the nodes.
	locker, armer = server.program(t, cfg.RedisNodes, cfg.KeyPrefix)
	if _, err := locker.TryAcquire(ctx, "orders/1001"); !errors.As(err, new(*continuity.ForgottenError)) {
		t.Errorf("the program's acquisition: %v; want a ForgottenError", err)
	}
	execOn(t, restored, `SELECT raised FROM fence.invalidate_all()`)
	untilReady(c)
	if err := armer.Check(ctx); err != nil {
		t.Error(err)
	}
	if lease, err = locker.TryAcquire(ctx, "orders/1001"); err != nil {
		t.Fatal(err)
	}
	c.want(http.StatusConflict, "POST", "/v1/leases", map[string]string{"resource": "orders/1001", "ttl": "30s"})
	if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
}

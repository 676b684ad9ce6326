//go:build unix

package testenv

import (
	"context"
	"net/url"

	"github.com/fencegate/fencegate/internal/pgserver"
)

// serverSettings suit many parallel tests, and enable what some
// tests need: prepared transactions and logical replication.
var serverSettings = map[string]string{
	"max_connections":           "300",
	"shared_buffers":            "64MB",
	"max_prepared_transactions": "20",
	"wal_level":                 "logical",
	// For three subscriptions at a time: a launcher that finds no free worker looks again minutes later.
	"max_worker_processes":            "24",
	"max_logical_replication_workers": "12",
	"wal_retrieve_retry_interval":     "500ms",
	"max_wal_size":                    "256MB",
	"autovacuum":                      "off", // it would only process databases that are dropped seconds later
}

// localPostgres starts a cluster from this machine's binaries.
func localPostgres(ctx context.Context) (*cluster, error) {
	if _, err := pgserver.Find(); err != nil {
		return nil, err
	}
	dir, err := serverDir()
	if err != nil {
		return nil, err
	}
	srv, err := pgserver.Start(ctx, pgserver.Config{Dir: dir, Fast: true, Ephemeral: true, Settings: serverSettings})
	if err != nil {
		return nil, err
	}
	atEnd(srv.Stop)
	base, err := url.Parse(srv.URL("postgres"))
	return &cluster{base: base}, err
}

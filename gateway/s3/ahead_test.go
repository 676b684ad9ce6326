//go:build unix

package s3_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// A look-up that begins ahead holds a connection, and whoever is to read its answer
// must not need another one before that. A page of another origin has its bucket's
// rules read first.
func TestAReadFromAPageNeedsOneConnectionAtATime(t *testing.T) {
	t.Parallel()
	w := setup(t, func(cfg *config) {
		config := cfg.Pool.Config()
		config.MaxConns = 1
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		cfg.Pool, cfg.DatabaseTimeout = pool, 30*time.Second
	})
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "data")
	began := time.Now()
	for _, header := range []map[string]string{nil, {"Origin": "https://page.example"}} {
		res, text := w.send(raw{creds: credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret}, method: "GET", path: "/orders/" + invoice, header: header})
		if res.StatusCode != http.StatusOK || text != "data" {
			t.Errorf("with %v: got %d %.200s", header, res.StatusCode, text)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

//go:build unix

package doctor

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/pooler/poolertest"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestAPoolerInTransactionModeIsFound(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	want(t, examine(t, pg.URL), "postgresql.pooler", OK)
	for _, size := range []int{1, 2, 5} {
		want(t, examine(t, poolertest.InTransactionMode(t, pg.URL, size)), "postgresql.pooler", Fail, "transaction mode")
	}

	// The usage that the finding recommends works, and no other client gets the grant.
	exec(t, pg.URL, `CREATE TABLE orders (id int)`, `SELECT fence.protect('orders', under => 'orders/')`)
	config, err := pgxpool.ParseConfig(poolertest.InTransactionMode(t, pg.URL, 2))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	g := fence.Grant{Resource: "orders/1", Token: 1, Seal: fence.NewSeal()}
	if err := pgfence.New(testenv.PoolOf(t, pg.GatewayURL)).Arm(t.Context(), fence.Arming{Resource: g.Resource, Token: g.Token, SealHash: g.Seal.Hash()}); err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	for i := range 16 {
		clients.Go(func() {
			insert := `INSERT INTO orders VALUES (1)`
			if i%2 == 0 {
				err := pgfence.InTx(t.Context(), pool, g, func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), insert); return err })
				if err != nil {
					t.Errorf("through the pooler: %v", err)
				}
				return
			}
			_, err := pool.Exec(t.Context(), insert)
			if code, ok := fence.CodeOf(pgfence.Translate(err)); !ok || code.SQLState != "ZF002" {
				t.Errorf("without a grant: %v", err)
			}
		})
	}
	clients.Wait()
}

// A server that stalls for seconds is not mistaken for a pooler.
func TestAServerThatStandsStillIsNotTakenForAPooler(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(testenv.Postgres(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	var still atomic.Bool // answers are held back
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		return &silent{Conn: conn, from: []byte("SELECT pg_backend_pid()"), still: &still}, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	want(t, []Finding{checkPooler(t.Context(), config)}, "postgresql.pooler", Fail, "could not be checked")
}

// silent stops sending when a statement is sent for the second time, on any connection.
type silent struct {
	net.Conn
	from  []byte
	still *atomic.Bool
	sent  atomic.Int32
}

func (s *silent) Write(p []byte) (int, error) {
	if bytes.Contains(p, s.from) && s.sent.Add(1) == 2 {
		s.still.Store(true)
	}
	if s.still.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}

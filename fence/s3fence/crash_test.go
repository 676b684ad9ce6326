//go:build unix

package s3fence_test

import (
	"context"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// After a crash a transaction's ID does not tell its outcome, because it may be reused. The stage does.
func TestTheOutcomeIsKnownAfterACrash(t *testing.T) {
	t.Parallel()
	w, dir := &world{t: t}, testenv.ServerDir(t)
	server := w.serve(dir)
	if err := migrate.Up(t.Context(), server.URL("postgres"), migrate.All); err != nil {
		t.Fatal(err)
	}
	w.exec(`CREATE TABLE rows (note text); SELECT fence.protect('rows', under => 'reports/'), objects.create_bucket('reports', -1)`)
	g := w.acquire(report, 1)
	answered, lost := w.record(g, name), w.record(g, name)

	config, err := pgxpool.ParseConfig(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "off" // publishing overrides it
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		return &cut{Conn: conn, arrives: true}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	wantErr(t, "the answer is lost", publishOn(t.Context(), pool, pgx.ReadCommitted, g, answered), fence.ErrUnknown)
	if err := s3fence.Outcome(t.Context(), w.writer, answered); err != nil { // it has arrived
		t.Fatal(err)
	}
	open := w.begin(pgx.ReadCommitted, g)
	if err := s3fence.Publish(t.Context(), open, lost); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}

	w.serve(dir)
	if err := s3fence.Outcome(t.Context(), w.writer, answered); err != nil {
		t.Errorf("committed before the crash: %v", err)
	}
	wantErr(t, "again", w.publish(pgx.ReadCommitted, g, answered), s3fence.ErrPublished)
	wantErr(t, "lost in the crash", s3fence.Outcome(t.Context(), w.writer, lost), fence.ErrNotCommitted)
	if err := w.publish(pgx.ReadCommitted, g, lost); err != nil {
		t.Error(err)
	}
	if n := w.count("SELECT count(*) FROM rows"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
	w.consistent()
}

// serve starts a PostgreSQL server for this test and connects to it.
func (w *world) serve(dir string) *pgserver.Server {
	w.t.Helper()
	server := testenv.OwnPostgres(w.t, pgserver.Config{Dir: dir, Fast: true})
	w.admin = testenv.PoolOf(w.t, server.URL("postgres"))
	w.writer = w.admin
	return server
}

//go:build unix

package s3fence_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestOfASweepAndAPublicationExactlyOneWins(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	const races = 210
	published := 0
	for i := range races {
		staged := w.record(g, name)
		w.age("2 hours")
		start := make(chan struct{})
		var swept, failed error
		var all sync.WaitGroup
		all.Go(func() {
			<-start
			_, swept = w.admin.Exec(t.Context(), "SELECT objects.condemn('1 hour', '1 day', 10, false, false)")
		})
		all.Go(func() {
			<-start
			failed = w.publish(levels[i%len(levels)], g, staged)
		})
		close(start)
		all.Wait()
		if swept != nil {
			t.Fatal(swept)
		}
		rows := w.count("SELECT count(*) FROM rows WHERE note = $1", staged.ID)
		live := w.count("SELECT count(*) FROM objects.blobs b JOIN objects.versions v ON b.id = ANY (v.blobs) WHERE v.id = $1::text::uuid AND b.state = 'live'", staged.ID)
		condemned := w.count("SELECT count(*) FROM objects.blobs b JOIN objects.stages s ON b.id = s.blob WHERE s.id = $1::text::uuid AND b.state = 'condemned'", staged.ID)
		switch {
		case failed == nil && rows == 1 && live == 1 && condemned == 0:
			published++
		case failed != nil && rows == 0 && live == 0 && condemned == 1:
			if pg, ok := errors.AsType[*pgconn.PgError](failed); !errors.Is(failed, s3fence.ErrGone) && (!ok || pg.Code != "40001") {
				t.Errorf("lost by %v", failed)
			}
			wantErr(t, "given up", s3fence.Outcome(t.Context(), w.writer, staged), s3fence.ErrGone)
		default:
			t.Fatalf("race %d: %v; %d rows, %d live, %d condemned", i, failed, rows, live, condemned)
		}
	}
	t.Logf("%d of %d were published", published, races)
	w.consistent()
}

func TestWhatIsStagedAndNeverPublishedIsSwept(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	young := w.stage(g, name, "young")
	if got, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{}); err != nil || got != (maintenance.Swept{}) {
		t.Errorf("swept %+v, %v", got, err)
	}
	w.age("25 hours")
	wantErr(t, "nobody swept yet", s3fence.Outcome(t.Context(), w.writer, young), fence.ErrNotCommitted)
	if got, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{}); err != nil || got != (maintenance.Swept{Condemned: 1, Deleted: 1}) {
		t.Errorf("swept %+v, %v", got, err)
	}
	for _, level := range levels {
		wantErr(t, "given up", w.publish(level, g, young), s3fence.ErrGone)
	}
	wantErr(t, "given up", s3fence.Outcome(t.Context(), w.writer, young), s3fence.ErrGone)
	w.age("49 hours")
	w.exec("UPDATE objects.blobs SET swept_at = swept_at - interval '49 hours'")
	if _, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{}); err != nil {
		t.Error(err)
	}
	if n := w.count("SELECT count(*) FROM objects.stages"); n != 0 {
		t.Errorf("%d stages are remembered for ever", n)
	}
	w.holds("at the end", "", 0)
}

// The age of a stage counts from its staging, so a long upload is not swept at once.
func TestAStageAgesFromItsStaging(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	data := blob.NewID().String()
	w.exec("SELECT objects.begin_upload($1::text::uuid, $2, $3, $4, 1, NULL)", data, bucket, name, report)
	w.age("2 hours")
	w.exec("SELECT objects.stage_upload($1::text::uuid, $2, $3, ARRAY[$4::text::uuid], '{1}', 'e', '{}', $5, 1, NULL, NULL, false, NULL)", data, bucket, name, data, report)
	w.exec("SELECT objects.condemn('1 hour', '1 day', 10, false, false)")
	if err := w.publish(pgx.ReadCommitted, g, s3fence.Staged{ID: data}); err != nil {
		t.Error(err)
	}
}

// If the process or its connection dies between publishing and COMMIT, nothing is published.
func TestADeathBeforeCommitPublishesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	for _, level := range levels {
		staged := w.stage(g, name, "at "+string(level))
		tx := w.begin(level, g)
		if _, err := tx.Exec(t.Context(), "INSERT INTO rows VALUES ('dead')"); err != nil {
			t.Fatal(err)
		}
		if err := s3fence.Publish(t.Context(), tx, staged); err != nil {
			t.Fatal(err)
		}
		asked := make(chan error, 1)
		go func() { asked <- s3fence.Outcome(t.Context(), w.writer, staged) }()
		testenv.Eventually(t, "the question waits for the publication", func() bool {
			return w.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
		})
		w.exec("SELECT pg_terminate_backend($1)", tx.Conn().PgConn().PID())
		wantErr(t, "dead", <-asked, fence.ErrNotCommitted)
		if n := w.count("SELECT count(*) FROM rows WHERE note = 'dead'"); n != 0 {
			t.Errorf("%d rows of a dead transaction", n)
		}
		if err := w.publish(level, g, staged); err != nil {
			t.Errorf("publish it after all: %v", err)
		}
		if got := w.read(name); got != "at "+string(level) {
			t.Errorf("the object holds %q", got)
		}
	}
}

// cut is a connection that is lost at COMMIT: before it, or before its answer.
type cut struct {
	net.Conn
	arrives bool
	lost    atomic.Bool
}

var errCut = errors.New("connection cut by the test")

func (c *cut) Write(p []byte) (int, error) {
	if !strings.Contains(string(p), "; COMMIT") {
		return c.Conn.Write(p)
	}
	c.lost.Store(true)
	if !c.arrives {
		return 0, errors.Join(errCut, c.Conn.Close())
	}
	return c.Conn.Write(p)
}

func (c *cut) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.lost.Load() {
		return 0, errors.Join(errCut, c.Conn.Close())
	}
	return n, err
}

func TestALostCommitIsFoundByItsStageAndNotRepeated(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	for _, arrives := range []bool{true, false} {
		for _, level := range levels {
			config, err := pgxpool.ParseConfig(w.pg.WriterURL)
			if err != nil {
				t.Fatal(err)
			}
			config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				var d net.Dialer
				conn, err := d.DialContext(ctx, network, address)
				return &cut{Conn: conn, arrives: arrives}, err
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			staged := w.record(g, name)
			err = publishOn(t.Context(), pool, level, g, staged)
			wantErr(t, "the answer is lost", err, fence.ErrUnknown)
			err = s3fence.Outcome(t.Context(), w.writer, staged)
			again := w.publish(level, g, staged)
			if arrives {
				if err != nil {
					t.Errorf("it was committed, and the outcome is %v", err)
				}
				wantErr(t, "again", again, s3fence.ErrPublished)
			} else {
				wantErr(t, "it did not arrive", err, fence.ErrNotCommitted)
				if again != nil {
					t.Errorf("again: %v", again)
				}
			}
			if n := w.count("SELECT count(*) FROM rows WHERE note = $1", staged.ID); n != 1 {
				t.Errorf("%s, arrives %v: %d rows, want 1", level, arrives, n)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	wantErr(t, "nobody answers", s3fence.Outcome(ctx, w.writer, s3fence.Staged{ID: strings.Repeat("0", 32)}), fence.ErrUnknown)
}

func TestTheOutcomeIsNotToldFromAnOldSnapshot(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	tx := w.begin(pgx.RepeatableRead)
	staged := w.record(g, name)
	_, err := tx.Exec(t.Context(), "SELECT fence.staged($1::text::uuid)", staged.ID)
	wantState(t, "at REPEATABLE READ", err, "25000")
}

func TestAStageFromAfterTheSnapshotIsNotThere(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(report, 1)
	for _, level := range levels {
		tx := w.begin(level, g)
		staged := w.record(g, name)
		err := s3fence.Publish(t.Context(), tx, staged)
		if level != pgx.ReadCommitted {
			wantErr(t, string(level), err, s3fence.ErrGone)
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || !strings.Contains(pg.Hint, "begin a new one") {
				t.Errorf("the hint does not say what to do: %v", err)
			}
			_ = tx.Rollback(t.Context())
			err = w.publish(level, g, staged)
		} else if err == nil {
			err = tx.Commit(t.Context())
		}
		if err != nil {
			t.Error(err)
		}
	}
}

//go:build unix

package pgfence_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// on is a world on a server of this test.
func on(t *testing.T, s *pgserver.Server) world {
	t.Helper()
	if err := migrate.Up(t.Context(), s.URL("postgres"), migrate.All); err != nil {
		t.Fatal(err)
	}
	pool := testenv.PoolOf(t, s.URL("postgres"))
	w := world{admin: pool, writer: pool, fence: pgfence.New(pool)}
	w.exec(t, `CREATE TABLE work (id bigserial PRIMARY KEY, token bigint, note text)`)
	w.exec(t, `SELECT fence.protect('work', resource => $1)`, orders)
	return w
}

var replicaSettings = map[string]string{"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on", "shared_buffers": "16MB"}

func TestAHolderThatWaitsForTheReplicaReadsWhatTheLastOneWrote(t *testing.T) {
	t.Parallel()
	primary := testenv.OwnPostgres(t, pgserver.Config{Settings: replicaSettings, Fast: true})
	w := on(t, primary)
	dir := testenv.ServerDir(t)
	if err := primary.CopyTo(t.Context(), dir, true); err != nil {
		t.Fatal(err)
	}
	standby := testenv.OwnPostgres(t, pgserver.Config{Dir: dir, Settings: replicaSettings, Fast: true})
	replica := connect(t, standby.URL("postgres"))
	writer := connect(t, primary.URL("postgres"), "-c synchronous_commit=off") // its COMMIT is not flushed when it returns
	newest := func() (token int64) {
		if err := replica.QueryRow(t.Context(), `SELECT coalesce(max(token), 0) FROM work`).Scan(&token); err != nil {
			t.Fatal(err)
		}
		return token
	}
	for token := fence.Token(1); token <= 40; token++ {
		g := w.acquire(t, orders, token)
		position, err := w.fence.Position(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := pgfence.WaitReplica(ctx, replica, position); err != nil {
			t.Fatal(err)
		}
		cancel()
		if got := newest(); got != int64(token)-1 {
			t.Fatalf("holder %d reads %d on the replica; the last holder wrote %d", token, got, token-1)
		}
		if _, err := replica.Exec(t.Context(), `CALL fence.wait_for($1::text::pg_lsn)`, string(position)); err != nil {
			t.Fatalf("wait_for of what has been replayed: %v", err)
		}
		tx := begin(t, writer, pgx.ReadCommitted, g)
		if err := write(t.Context(), tx, token); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	// If the replica stops replaying, both calls report it and return.
	adminOfStandby := connect(t, standby.URL("postgres"))
	if _, err := adminOfStandby.Exec(t.Context(), `SELECT pg_wal_replay_pause()`); err != nil {
		t.Fatal(err)
	}
	// Pausing is asynchronous: wait for it, then arm.
	testenv.Eventually(t, "the standby pauses", func() (paused bool) {
		if err := adminOfStandby.QueryRow(t.Context(), `SELECT pg_get_wal_replay_pause_state() = 'paused'`).Scan(&paused); err != nil {
			t.Fatal(err)
		}
		return paused
	})
	w.acquire(t, orders, 41)
	position, err := w.fence.Position(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := pgfence.WaitReplica(ctx, connect(t, standby.URL("postgres")), position); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a replica that stands still: %v", err)
	}
	_, err = replica.Exec(t.Context(), `CALL fence.wait_for($1::text::pg_lsn, '100 ms')`, string(position))
	wantCode(t, err, "57014")

	// The replica is promoted without the position.
	if _, err := adminOfStandby.Exec(t.Context(), `ALTER SYSTEM SET primary_conninfo = ''`); err != nil {
		t.Fatal(err)
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := adminOfStandby.Exec(t.Context(), `SELECT pg_promote()`); err != nil {
		t.Fatal(err)
	}
	beyond := pgfence.Position("7F/0")
	if err := pgfence.WaitReplica(t.Context(), replica, beyond); !errors.Is(err, pgfence.ErrPromoted) {
		t.Errorf("a replica that was promoted too early: %v", err)
	}
	_, err = replica.Exec(t.Context(), `CALL fence.wait_for($1::text::pg_lsn)`, string(beyond))
	wantCode(t, err, "55000")
}

// A session's synchronous_commit = off must not lose an acknowledged arm in a crash. A row that is written after it
// in the same session shows that the crash does lose unflushed commits. Without the setting that makes arms durable,
// the arm is lost.
func TestACrashRightAfterArmLosesNothingThoughTheSessionCommitsAsynchronously(t *testing.T) {
	t.Parallel()
	dir := testenv.ServerDir(t)
	settings := map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s", "autovacuum": "off"}
	server := testenv.OwnPostgres(t, pgserver.Config{Dir: dir, Settings: settings})
	w := on(t, server)
	w.exec(t, `CREATE TABLE unfenced (v int)`)
	armAndCrash := func(token fence.Token) (kept bool) {
		t.Helper()
		die := w.halt(t, "walwriter") // nothing but a COMMIT that waits for it flushes the WAL
		w.acquire(t, orders, token)
		w.exec(t, `INSERT INTO unfenced VALUES ($1)`, int(token))
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		die()
		server = testenv.OwnPostgres(t, pgserver.Config{Dir: dir, Settings: settings})
		pool := testenv.PoolOf(t, server.URL("postgres"))
		w.admin, w.fence = pool, pgfence.New(pool)
		return value[bool](t, w, `SELECT EXISTS (SELECT FROM fence.fences WHERE resource = $1 AND token = $2)`, orders, token)
	}
	w.exec(t, `CHECKPOINT`)
	if !armAndCrash(1) {
		t.Error("arm had returned, and the crash undid it")
	}
	if value[bool](t, w, `SELECT EXISTS (SELECT FROM unfenced)`) {
		t.Error("the crash lost nothing, so this test shows nothing")
	}
	mutateFunction(t, w, "fence.commit_durably", `NOT IN ('on', 'remote_apply')`, `IN ('never')`)
	w.exec(t, `CHECKPOINT`)
	if armAndCrash(2) {
		t.Error("an arm that commits asynchronously was not lost either, so this test shows nothing")
	}
}

// halt stops processes of the test's own server. die ends them, after the server was killed.
func (w world) halt(t *testing.T, types ...string) (die func()) {
	t.Helper()
	pids := value[[]int](t, w, `SELECT array_agg(pid) FROM pg_stat_activity WHERE backend_type = ANY ($1)`, types)
	if len(pids) != len(types) {
		t.Fatalf("%d processes of %q", len(pids), types)
	}
	all := func(sig syscall.Signal) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, sig)
		}
	}
	dead := false
	t.Cleanup(func() { // before the server is stopped
		if !dead {
			all(syscall.SIGCONT)
		}
	})
	all(syscall.SIGSTOP)
	return func() {
		dead = true
		all(syscall.SIGKILL)
	}
}

// armsAmong arms repeatedly while writers write under the current grant without a pause. It returns the number of
// writes that passed before each arm returned, sorted. It stops with fair = false if an arm lets more than mayPass
// writes pass. Other load on the machine delays arms and writers alike.
func armsAmong(t *testing.T, w world, writers, arms int) (passed []int64, fair bool) {
	t.Helper()
	pool := poolWith(t, w.pg.WriterURL, func(c *pgxpool.Config) { c.MaxConns = int32(writers) })
	first := fence.Grant{Resource: orders, Token: value[fence.Token](t, w, `SELECT coalesce(max(token), 0) + 1 FROM fence.resources`), Seal: fence.NewSeal()}
	if err := w.fence.Arm(t.Context(), arming(first)); err != nil {
		t.Fatal(err)
	}
	var current atomic.Pointer[fence.Grant]
	current.Store(&first)
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	var busy sync.WaitGroup
	var written atomic.Int64
	var watch atomic.Pointer[func(int64)] // called for each write during an arm
	for range writers {
		busy.Go(func() {
			for ctx.Err() == nil {
				g := current.Load()
				if pgfence.InTx(ctx, pool, *g, func(tx pgx.Tx) error { return write(ctx, tx, g.Token) }) == nil {
					n := written.Add(1)
					if look := watch.Load(); look != nil {
						(*look)(n)
					}
				}
			}
		})
	}
	for i := range arms {
		// Wait until they are busy under this grant.
		for enough, tick := written.Load()+int64(writers/2), time.NewTicker(time.Millisecond); written.Load() < enough && ctx.Err() == nil; <-tick.C {
		}
		g := fence.Grant{Resource: orders, Token: first.Token + fence.Token(i) + 1, Seal: fence.NewSeal()}
		bounded, cancel := context.WithCancel(ctx)
		begun := written.Load()
		look := func(n int64) {
			if n-begun > mayPass {
				cancel()
			}
		}
		watch.Store(&look)
		err := w.fence.Arm(bounded, arming(g))
		passed = append(passed, written.Load()-begun)
		watch.Store(nil)
		cancel()
		if fair = err == nil; !fair {
			t.Logf("arm %d let %d writes pass: %v", i, passed[i], err)
			break
		}
		current.Store(&g)
	}
	stop()
	busy.Wait()
	slices.Sort(passed)
	return passed, fair
}

const (
	busyWriters = 32
	mayPass     = 16 * busyWriters // the maximum of writers that pass before a fair arm: those in progress, and those that arrive while it waits
)

// Arming must not starve while writers write without a pause, nor wait for each of them.
func TestArmIsFairAgainst32BusyWriters(t *testing.T) {
	t.Parallel()
	passed, fair := armsAmong(t, setup(t), busyWriters, 20)
	t.Logf("%d arms among %d busy writers: half of them let %d writes pass or fewer, the worst %d", len(passed), busyWriters, passed[len(passed)/2], passed[len(passed)-1])
	if !fair {
		t.Errorf("an arm among %d busy writers did not come to its turn", busyWriters)
	}
}

func TestTheFairnessOfArmsCatchesRowLocks(t *testing.T) {
	t.Parallel()
	w := setup(t)
	mutate(t, w, `IF plain OR pg_catalog.strpos(r`, "PERFORM FROM fence.resources x WHERE x.resource OPERATOR(pg_catalog.=) r FOR SHARE;\n  IF plain OR pg_catalog.strpos(r")
	if passed, fair := armsAmong(t, w, busyWriters, 5); fair {
		t.Errorf("guards that lock the fence's row do not hold arms up: %v", passed)
	}
}

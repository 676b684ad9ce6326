package pglock_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock/pglock"
)

const (
	asWorker    = "TEST_BINARY_AS_WORKER" // the locker's address: this process is a worker
	workerWrite = "TEST_WORKER_WRITES_AS"

	turns = 20 // per worker
)

// Two operating-system processes increment one number. Each reads it, and writes it in another transaction. No
// increment is lost, and each turn's token is unique and above those before.
func TestTwoProcessesTakeTurns(t *testing.T) {
	t.Parallel()
	w := setup(t)
	pg := w.pg
	w.exec(t, `CREATE TABLE counted (n bigint)`)
	w.exec(t, `CREATE TABLE taken (id bigserial, token bigint UNIQUE)`)
	w.exec(t, `INSERT INTO counted VALUES (0)`)
	w.exec(t, `GRANT ALL ON counted, taken, taken_id_seq TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('counted', resource => 'counter')`)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	locker := pg.As(t, "fence_locker")
	var said [2]bytes.Buffer
	var workers [2]*exec.Cmd
	for i := range workers {
		workers[i] = exec.CommandContext(ctx, self)
		workers[i].Env = append(os.Environ(), asWorker+"="+locker, workerWrite+"="+pg.WriterURL)
		workers[i].Stderr = &said[i]
		if err := workers[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i, worker := range workers {
		if err := worker.Wait(); err != nil {
			t.Errorf("worker %d: %v\n%s", i, err, said[i].String())
		}
	}
	if n := ask[int](t, w, `SELECT n FROM counted`); n != 2*turns {
		t.Errorf("counted %d, want %d", n, 2*turns)
	}
	if n := ask[int](t, w, `SELECT count(*) FROM taken`); n != 2*turns {
		t.Errorf("%d tokens, want %d", n, 2*turns)
	}
	if n := ask[int](t, w, `SELECT count(*) FROM (SELECT token, lag(token) OVER (ORDER BY id) AS before FROM taken) x WHERE token <= before`); n != 0 {
		t.Errorf("%d tokens did not rise", n)
	}
}

// work is what a worker's process does.
func work() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	config, err := pgxpool.ParseConfig(os.Getenv(asWorker))
	if err != nil {
		return err
	}
	pgfence.Configure(config)
	locker, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer locker.Close()
	source, err := pglock.New(pglock.Config{Pool: locker})
	if err != nil {
		return err
	}
	pglock.GiveTime(source)
	writer, err := pgxpool.New(ctx, os.Getenv(workerWrite))
	if err != nil {
		return err
	}
	defer writer.Close()
	for range turns {
		if err := turn(ctx, source, writer); err != nil {
			return errors.Join(err, source.Close())
		}
	}
	return source.Close()
}

// turn adds one under a lease.
func turn(ctx context.Context, source *pglock.Source, writer *pgxpool.Pool) error {
	lease, err := leasing.One(source.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: "counter", TTL: 2 * time.Minute}))
	if err != nil {
		return err
	}
	var n int
	if err := writer.QueryRow(ctx, `SELECT n FROM counted`).Scan(&n); err != nil {
		return err
	}
	err = pgfence.InTx(ctx, writer, lease.Grant, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE counted SET n = $1`, n+1); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO taken (token) VALUES ($1)`, int64(lease.Grant.Token))
		return err
	})
	if err != nil {
		return err
	}
	return source.Release(ctx, lease.Ref())
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// operation lets clients work against a contender and returns their rate.
type operation func(ctx context.Context, w *world, on contender, clients int, slice time.Duration) (float64, error)

var operations = map[string]struct {
	run  operation
	unit string
}{
	"select":  {pgbench("-S"), "/s"},
	"tpcb":    {pgbench("-b", "tpcb-like"), "/s"},
	"rows":    {pgbenchScript("SELECT aid, bid, abalance, filler FROM pgbench_accounts WHERE aid <= 2000;\n"), "/s"},
	"copyout": {copying(copyOut), "MB/s"},
	"copyin":  {copying(copyIn), "MB/s"},
}

var tps = regexp.MustCompile(`tps = ([0-9.]+) \(without`)

func pgbench(args ...string) operation {
	return func(ctx context.Context, w *world, on contender, clients int, slice time.Duration) (float64, error) {
		threads := min(clients, 2)
		all := append([]string{
			"-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", strconv.Itoa(threads), "-T", strconv.Itoa(max(1, int(slice.Seconds()))),
			"-h", on.host, "-p", on.port, "-U", "postgres",
		}, args...)
		cmd := exec.CommandContext(ctx, w.pgbench, append(all, "postgres")...)
		cmd.Env = append(os.Environ(), "PGPASSWORD="+w.password, "PGSSLMODE=disable")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return 0, fmt.Errorf("pgbench: %w: %s", err, out)
		}
		found := tps.FindSubmatch(out)
		if found == nil {
			return 0, fmt.Errorf("pgbench said no tps: %s", out)
		}
		return strconv.ParseFloat(string(found[1]), 64)
	}
}

func pgbenchScript(sql string) operation {
	return func(ctx context.Context, w *world, on contender, clients int, slice time.Duration) (float64, error) {
		file := filepath.Join(w.dir, "script.sql")
		if err := os.WriteFile(file, []byte(sql), 0o600); err != nil {
			return 0, err
		}
		return pgbench("-f", file)(ctx, w, on, clients, slice)
	}
}

// copying repeats a COPY on each client's connection for the slice, and counts megabytes.
func copying(once func(context.Context, *pgconn.PgConn) (int64, error)) operation {
	return func(ctx context.Context, w *world, on contender, clients int, slice time.Duration) (float64, error) {
		conns := make([]*pgconn.PgConn, clients)
		for i := range conns {
			var err error
			if conns[i], err = w.connect(ctx, on); err != nil {
				return 0, err
			}
			defer func() { _ = conns[i].Close(ctx) }()
		}
		var total atomic.Int64
		var working sync.WaitGroup
		failures := make([]error, clients)
		began := time.Now()
		for i, conn := range conns {
			working.Go(func() {
				for time.Since(began) < slice && failures[i] == nil {
					var n int64
					n, failures[i] = once(ctx, conn)
					total.Add(n)
				}
			})
		}
		working.Wait()
		for _, err := range failures {
			if err != nil {
				return 0, err
			}
		}
		return float64(total.Load()) / 1e6 / time.Since(began).Seconds(), nil
	}
}

// counted counts the bytes written to it.
type counted int64

func (c *counted) Write(b []byte) (int, error) {
	*c += counted(len(b))
	return len(b), nil
}

func copyOut(ctx context.Context, conn *pgconn.PgConn) (int64, error) {
	var n counted
	_, err := conn.CopyTo(ctx, &n, "COPY (SELECT * FROM pgbench_accounts WHERE aid <= 20000) TO STDOUT")
	return int64(n), err
}

// copied is 2 MB of rows.
var copied = bytes.Repeat([]byte("12345\t"+string(bytes.Repeat([]byte{'x'}, 193))+"\n"), 10_000)

// copyIn rolls back, so that the table stays empty.
func copyIn(ctx context.Context, conn *pgconn.PgConn) (int64, error) {
	if _, err := conn.Exec(ctx, "BEGIN").ReadAll(); err != nil {
		return 0, err
	}
	if _, err := conn.CopyFrom(ctx, io.Reader(bytes.NewReader(copied)), "COPY landing FROM STDIN"); err != nil {
		return 0, err
	}
	_, err := conn.Exec(ctx, "ROLLBACK").ReadAll()
	return int64(len(copied)), err
}

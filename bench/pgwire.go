package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/stack"
)

// pgwireSubject measures the relay of gateway/pgwire against no relay ("direct"), a relay that only copies ("iocopy"),
// and PgBouncer in session mode, each in its own process:
//
//   - select, tpcb, rows, copyout, copyin: rates on one real PostgreSQL
//   - cpu, allocs, idle: the relay's processor time, allocations, and memory of idle sessions, before a stand-in
//   - memory: the most that the relay takes for a COPY of 1 GiB and a row of 500 MB
func pgwireSubject() subject {
	return subject{
		name: "pgwire", workers: []int{1, 16, 64}, slice: time.Second, rounds: 3, // pgbench wants whole seconds
		contenders: []string{"direct", "iocopy", "pgbouncer", "ours", "ours with TLS"},
		parts: []part{
			{name: "select", run: pgwireLoad("select", "/s", pgbench("", "-S"))},
			{name: "tpcb", run: pgwireLoad("tpcb", "/s", pgbench("", "-b", "tpcb-like"))},
			{name: "rows", run: pgwireLoad("rows", "/s", pgbench("SELECT aid, bid, abalance, filler FROM pgbench_accounts WHERE aid <= 2000;\n"))},
			{name: "copyout", run: pgwireLoad("copyout", "MB/s", copying(copyOutOf("SELECT * FROM pgbench_accounts WHERE aid <= 20000")))},
			{name: "copyin", run: pgwireLoad("copyin", "MB/s", copying(copyIn))},
			{name: "cpu", run: pgwireCPU},
			{name: "allocs", run: pgwireAllocs},
			{name: "idle", run: pgwireIdle},
			{name: "memory", run: pgwireMemory},
		},
	}
}

// pgwireWorld is a PostgreSQL, and the ways to it.
type pgwireWorld struct {
	pg   *stack.Postgres
	dir  string
	ways []way
}

// way is one way to PostgreSQL.
type way struct {
	name, addr string
	relay      *child.Process // nil: there is none of ours
}

// startWays starts the chosen ways to a PostgreSQL. It has a TPC-B branch for each client, for whose rows the transactions
// wait.
func startWays(ctx context.Context, b *bench, s *stack.Stack, clients int, names ...string) *pgwireWorld {
	w := &pgwireWorld{dir: s.Dir, pg: run.Must(s.Postgres(ctx, stack.PostgresConfig{
		Database: stack.Database{Name: "postgres", Logins: []stack.Login{}, Migrate: stack.NotMigrated, Then: []string{"CREATE UNLOGGED TABLE landing (n int, note text)"}},
		Settings: map[string]string{
			"max_connections": strconv.Itoa(4*clients + 32), "shared_buffers": "256MB", "autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "8GB", "jit": "off",
		},
	}))}
	direct := w.pg.Addr()
	run.Must(w.runPgbench(ctx, direct, "-i", "-q", "-s", strconv.Itoa(clients)))
	for _, name := range slices.DeleteFunc(names, func(name string) bool { return !b.Chosen(name) }) {
		one := way{name: name, addr: direct}
		switch name {
		case "direct":
		case "pgbouncer":
			one.addr = run.Must(w.pg.PgBouncer(ctx, stack.PgBouncerConfig{To: direct, Users: map[string]string{"postgres": w.pg.Password("")}, Settings: map[string]string{
				"pool_mode": "session", "max_client_conn": "1000", "default_pool_size": "500", "ignore_startup_parameters": "extra_float_digits",
				"log_connections": "0", "log_disconnections": "0",
			}}))
		default:
			one.relay, one.addr, _ = startRelay(ctx, s, relays[name], direct)
		}
		w.ways = append(w.ways, one)
	}
	return w
}

// connect logs in as PostgreSQL's superuser.
func (w *pgwireWorld) connect(ctx context.Context, on way) *pgconn.PgConn {
	config, to := run.Must(pgconn.ParseConfig(w.pg.Admin())), run.Must(pgconn.ParseConfig("postgres://"+on.addr))
	config.Port = to.Port // all listen on the same host
	return run.Must(pgconn.ConnectConfig(ctx, config))
}

// load makes contenders of the ways, for a number of clients, until the stack closes.
type load func(ctx context.Context, s *stack.Stack, w *pgwireWorld, clients int) []run.Contender

// pgwireLoad measures a load with all numbers of clients.
func pgwireLoad(name, unit string, open load) func(context.Context, *bench, *stack.Stack) {
	return func(ctx context.Context, b *bench, s *stack.Stack) {
		w := startWays(ctx, b, s, slices.Max(b.Workers), "direct", "iocopy", "pgbouncer", "ours")
		for _, clients := range b.Workers {
			withStack(b, func(s *stack.Stack) {
				contenders := open(ctx, s, w, clients)
				for i := range contenders {
					if contenders[i].Name == "ours" {
						contenders[i].Peers = []string{"direct", "iocopy", "pgbouncer"}
					}
				}
				at := fmt.Sprintf("%s.c%d", name, clients)
				results := b.Measure(ctx, run.Cell{Name: at, Workers: clients, Unit: unit, Grace: 30 * time.Second}, contenders...)
				b.AtLeast("pgwire."+at+".iocopy", results, "ours", "iocopy", 0.97)
				b.AtLeast("pgwire."+at+".pgbouncer", results, "ours", "pgbouncer", 1)
			})
		}
	}
}

var tps = regexp.MustCompile(`tps = ([0-9.]+) \(without`)

// runPgbench runs pgbench on an address and returns what it printed.
func (w *pgwireWorld) runPgbench(ctx context.Context, addr string, args ...string) ([]byte, error) {
	path := filepath.Join(w.pg.BinDir(), "pgbench")
	if _, err := os.Stat(path); err != nil {
		path = "pgbench"
	}
	host, port, _ := net.SplitHostPort(addr)
	cmd := exec.CommandContext(ctx, path, append(args, "-h", host, "-p", port, "-U", "postgres", "postgres")...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+w.pg.Password(""), "PGSSLMODE=disable")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("pgbench: %w: %s", err, out)
	}
	return out, err
}

// pgbench is a load of pgbench's, with a script of its own unless that is "".
func pgbench(script string, args ...string) load {
	return func(_ context.Context, _ *stack.Stack, w *pgwireWorld, clients int) (all []run.Contender) {
		args := append(slices.Clone(args), "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", strconv.Itoa(min(clients, 2)))
		if script != "" {
			file := filepath.Join(w.dir, "script.sql")
			run.Check(os.WriteFile(file, []byte(script), 0o600))
			args = append(args, "-f", file)
		}
		for _, one := range w.ways {
			all = append(all, run.Contender{Name: one.name, Slice: func(ctx context.Context, _ int, d time.Duration) (float64, error) {
				out, err := w.runPgbench(ctx, one.addr, append(slices.Clip(args), "-T", strconv.Itoa(max(1, int(d.Seconds()))))...)
				found := tps.FindSubmatch(out)
				if err == nil && found == nil {
					err = fmt.Errorf("pgbench printed no tps: %s", out)
				}
				if err != nil {
					return 0, err
				}
				return strconv.ParseFloat(string(found[1]), 64)
			}})
		}
		return all
	}
}

// copying is a load that repeats a COPY on each client's connection. Its rate is in MB.
func copying(do func(context.Context, *pgconn.PgConn) (int64, error)) load {
	return func(ctx context.Context, s *stack.Stack, w *pgwireWorld, clients int) (all []run.Contender) {
		for _, one := range w.ways {
			var conns []*pgconn.PgConn
			for range clients {
				conn := w.connect(ctx, one)
				s.AtClose(func() error { return conn.Close(context.WithoutCancel(ctx)) })
				conns = append(conns, conn)
			}
			size := run.Must(do(ctx, conns[0]))
			all = append(all, run.Contender{Name: one.name, Amount: float64(size) / 1e6, Op: func(ctx context.Context, client int, _ int64) error {
				n, err := do(ctx, conns[client])
				if err == nil && n != size {
					err = fmt.Errorf("%d bytes instead of %d", n, size)
				}
				return err
			}})
		}
		return all
	}
}

// counted counts the bytes written to it.
type counted int64

func (c *counted) Write(b []byte) (int, error) {
	*c += counted(len(b))
	return len(b), nil
}

func copyOutOf(query string) func(ctx context.Context, conn *pgconn.PgConn) (int64, error) {
	return func(ctx context.Context, conn *pgconn.PgConn) (int64, error) {
		var n counted
		_, err := conn.CopyTo(ctx, &n, "COPY ("+query+") TO STDOUT")
		return int64(n), err
	}
}

// copied is 2 MB of rows.
var copied = bytes.Repeat([]byte("12345\t"+string(bytes.Repeat([]byte{'x'}, 193))+"\n"), 10_000)

// copyIn rolls back, so that the table stays empty.
func copyIn(ctx context.Context, conn *pgconn.PgConn) (int64, error) {
	if _, err := conn.Exec(ctx, "BEGIN").ReadAll(); err != nil {
		return 0, err
	}
	if _, err := conn.CopyFrom(ctx, bytes.NewReader(copied), "COPY landing FROM STDIN"); err != nil {
		return 0, err
	}
	_, err := conn.Exec(ctx, "ROLLBACK").ReadAll()
	return int64(len(copied)), err
}

// pgwireMemory passes large data, and measures the highest memory of the relay's process.
func pgwireMemory(ctx context.Context, b *bench, s *stack.Stack) {
	const mib, mayGrow = 1 << 20, 8 << 20 // for buffers that await reuse
	w := startWays(ctx, b, s, 1, "ours")
	for _, one := range w.ways {
		for _, load := range []struct {
			name string
			want int64 // bytes, at least
			run  func(context.Context, *pgconn.PgConn) (int64, error)
		}{
			{"COPY of 1 GiB to the client", 1 << 30, copyOutOf("SELECT repeat('x', 1023) FROM generate_series(1, 1048576)")},
			{"COPY of 1 GiB from the client", 1<<30 - int64(len(copied)), copyGibibyteIn},
			{"a row of 500 MB", 500_000_000, readRow},
		} {
			conn, before := w.connect(ctx, one), memory(one.relay.Pid(), "VmHWM")
			n := run.Must(load.run(ctx, conn))
			if n < load.want {
				run.Check(fmt.Errorf("%s: %d bytes, wanted %d", load.name, n, load.want))
			}
			after := memory(one.relay.Pid(), "VmHWM")
			_ = conn.Close(ctx)
			b.Printf("%s: %d bytes; the relay's process had at most %.1f MiB of resident memory before, %.1f MiB after\n", load.name, n, float64(before)/mib, float64(after)/mib)
			b.Add(run.Goal{Name: "pgwire.memory", Ours: fmt.Sprintf("+%dKiB", (after-before)>>10), Peer: "8MiB", Ratio: float64(after-before) / mayGrow, Want: 1, AtMost: true})
		}
	}
}

func copyGibibyteIn(ctx context.Context, conn *pgconn.PgConn) (whole int64, err error) {
	var rows []io.Reader
	for ; whole+int64(len(copied)) <= 1<<30; whole += int64(len(copied)) {
		rows = append(rows, bytes.NewReader(copied))
	}
	_, err = conn.CopyFrom(ctx, io.MultiReader(rows...), "COPY landing FROM STDIN WHERE n < 0") // reads all rows, keeps none
	return whole, err
}

func readRow(ctx context.Context, conn *pgconn.PgConn) (int64, error) {
	answer := conn.ExecParams(ctx, "SELECT repeat('x', 500000000)", nil, nil, nil, nil).Read()
	if answer.Err != nil {
		return 0, answer.Err
	}
	return int64(len(answer.Rows[0][0])), nil
}

// onRelays makes contenders that exchange messages through relays before a stand-in, with answers of a size. Each worker
// has a session.
func onRelays(ctx context.Context, s *stack.Stack, workers, size int) (all []run.Contender) {
	for _, name := range []string{"iocopy", "ours"} {
		in := newStandIn(s, size)
		relay, addr, control := startRelay(ctx, s, relays[name], in.Addr().String())
		sessions := make([]*session, workers)
		all = append(all, run.Contender{
			Name: name,
			Op: func(_ context.Context, worker int, _ int64) (err error) {
				if sessions[worker] == nil {
					sessions[worker], err = in.login(addr, false)
				}
				if err == nil {
					err = sessions[worker].exchange()
				}
				return err
			},
			Meters: append(cost("relay", func() time.Duration { return spentBy(relay.Pid()) }),
				run.Meter{Name: "allocs", Read: func(ctx context.Context) float64 { return run.Must(mallocsAt(ctx, control)) }}),
		})
	}
	return all
}

// relays are the kinds of servers, by the contenders' names.
var relays = map[string]string{"iocopy": "iocopy", "ours": "pgwire"}

// pgwireCPU measures the processor time of a relay's process per exchange. It is steadier than rates on a machine that
// relay, clients and server share.
func pgwireCPU(ctx context.Context, b *bench, _ *stack.Stack) {
	for _, clients := range b.Workers {
		for _, size := range []int{200, 200_000} {
			withStack(b, func(s *stack.Stack) {
				b.Measure(ctx, run.Cell{Name: fmt.Sprintf("cpu.c%d.%d-bytes", clients, size), Workers: clients}, onRelays(ctx, s, clients, size)...)
			})
		}
	}
}

// pgwireAllocs counts the allocations of the relay's process while messages pass.
func pgwireAllocs(ctx context.Context, b *bench, s *stack.Stack) {
	const rows, messages = 100, 103 // with the question, and the two that end the answer
	results := b.Measure(ctx, run.Cell{Name: "allocs", Workers: 1, Ops: 20_000, Slice: time.Minute, Rounds: 1}, onRelays(ctx, s, 1, rows*rowBytes+endBytes)...)
	if ours := results["ours"]; ours != nil {
		per := ours.Meter("allocs") / messages
		b.Add(run.Goal{Name: "pgwire.allocations", Ours: fmt.Sprintf("%.5f/message", per), Peer: "none", Ratio: per, Want: 0.001, AtMost: true})
	}
}

// pgwireIdle holds sessions that have each made one exchange, and then do nothing.
func pgwireIdle(ctx context.Context, b *bench, _ *stack.Stack) {
	many := 5000
	if b.Quick {
		many = 300
	}
	for _, one := range []struct {
		name, kind string
		encrypted  bool
		sessions   int
	}{
		{"iocopy", "iocopy", false, many / 3}, // each session has two pipes for splicing
		{"ours", "pgwire", false, many},
		{"ours with TLS", "pgwire", true, many},
	} {
		if !b.Chosen(one.name) {
			continue
		}
		withStack(b, func(s *stack.Stack) {
			in := newStandIn(s, 100*rowBytes+endBytes)
			relay, addr, _ := startRelay(ctx, s, one.kind, in.Addr().String())
			before, began := memory(relay.Pid(), "VmRSS"), time.Now()
			sessions := in.logins(addr, one.encrypted, one.sessions)
			took, each := time.Since(began), float64(memory(relay.Pid(), "VmRSS")-before)/1024/float64(one.sessions)
			const rest = 10 * time.Second
			spent := spentBy(relay.Pid())
			time.Sleep(rest)
			spent = spentBy(relay.Pid()) - spent
			b.Printf("%d idle sessions through %s: %.1f KiB of resident memory each, %.1f ms of processor a second in all (opened in %v)\n",
				one.sessions, one.name, each, spent.Seconds()*1000/rest.Seconds(), took.Round(time.Millisecond))
			if one.name == "ours" {
				b.Add(run.Goal{Name: fmt.Sprintf("pgwire.idle.%d", many), Ours: fmt.Sprintf("%.1fKiB", each), Peer: "40KiB", Ratio: each / 40, Want: 1, AtMost: true})
			}
			for _, one := range sessions { // each of them still works
				run.Check(errors.Join(one.exchange(), one.Close()))
			}
		})
	}
}

// logins opens this many sessions, several at a time.
func (in *standIn) logins(addr string, encrypted bool, n int) []*session {
	sessions, failures := make([]*session, n), make([]error, n)
	limit := make(chan struct{}, 64)
	var opening sync.WaitGroup
	for i := range sessions {
		limit <- struct{}{}
		opening.Go(func() {
			sessions[i], failures[i] = in.login(addr, encrypted)
			<-limit
		})
	}
	opening.Wait()
	run.Check(errors.Join(failures...))
	return sessions
}

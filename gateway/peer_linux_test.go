package gateway_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sys/unix"

	"github.com/fencegate/fencegate/internal/testenv"
)

// vanish cuts a client off the network, as if its machine had died: nothing reaches it, and it acknowledges nothing.
// Its socket drops every packet before TCP sees it.
func vanish(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	raw, err := conn.PgConn().Conn().(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "what it sent is acknowledged", func() bool { // otherwise it would be retransmitted, which a dead machine does not do
		var info *unix.TCPInfo
		cerr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
		if cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
		return info.Unacked == 0
	})
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	cerr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]})
	})
	if cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
}

const rowsForLong = `SELECT repeat('x', 100000) FROM generate_series(1, 100000)`

// A dead machine sends nothing, so only its silence reveals it.
func TestALeaseEndsATTLAfterItsClientsMachineIsGone(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second
	for name, work := range map[string]func(t *testing.T, conn *pgx.Conn){
		"idle": func(*testing.T, *pgx.Conn) {},
		"idle in a transaction": func(t *testing.T, conn *pgx.Conn) {
			if _, err := conn.Exec(t.Context(), "BEGIN"); err != nil {
				t.Fatal(err)
			}
		},
		"a statement runs": func(t *testing.T, conn *pgx.Conn) {
			conn.PgConn().Frontend().SendQuery(&pgproto3.Query{String: "SELECT pg_sleep(600)"})
			if err := conn.PgConn().Frontend().Flush(); err != nil {
				t.Fatal(err)
			}
		},
		"rows arrive": func(t *testing.T, conn *pgx.Conn) {
			conn.PgConn().Frontend().SendQuery(&pgproto3.Query{String: rowsForLong})
			if err := conn.PgConn().Frontend().Flush(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.CopyN(io.Discard, conn.PgConn().Conn(), 1<<20); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, pg := leasingGateway(t, nil)
			conn, err := c.login(t.Context(), pg, "-c fence.lease=orders/1001;fresh;ttl="+ttl.String())
			if err != nil {
				t.Fatal(err)
			}
			work(t, conn)
			vanish(t, conn)
			gone := time.Now()
			testenv.Eventually(t, "the lease is free", func() bool { _, locked := c.locked("orders/1001"); return !locked })
			t.Logf("free after %v", time.Since(gone).Round(10*time.Millisecond))
			if took := time.Since(gone); took < ttl/3 {
				t.Errorf("free after %v already", took)
			}
		})
	}
}

// A client that reads slowly, or not at all for a while, keeps its lease: its machine acknowledges TCP's probes.
func TestASlowReaderThatLivesKeepsItsLease(t *testing.T) {
	t.Parallel()
	c, pg := leasingGateway(t, nil)
	conn, err := c.login(t.Context(), pg, "-c fence.lease=orders/1001;fresh;ttl=9s")
	if err != nil {
		t.Fatal(err)
	}
	conn.PgConn().Frontend().SendQuery(&pgproto3.Query{String: rowsForLong})
	if err := conn.PgConn().Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < 20*time.Second; <-tick.C {
		if _, locked := c.locked("orders/1001"); !locked {
			t.Fatalf("lost after %v without a read", time.Since(began))
		}
	}
	if _, err := io.CopyN(io.Discard, conn.PgConn().Conn(), 50<<20); err != nil {
		t.Errorf("when it reads again: %v", err)
	}
	if _, locked := c.locked("orders/1001"); !locked {
		t.Error("lost when it read again")
	}
}

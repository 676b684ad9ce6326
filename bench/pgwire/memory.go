package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	gibibyte  = 1 << 30
	rowBytes  = 500_000_000
	mayGrow   = 8 << 20 // for buffers that await reuse
	sqlOut    = "COPY (SELECT repeat('x', 1023) FROM generate_series(1, 1048576)) TO STDOUT"
	sqlIn     = "COPY landing FROM STDIN WHERE n < 0" // reads all rows, keeps none
	sqlOneRow = "SELECT repeat('x', 500000000)"
)

// memoryPart passes large data, and measures the highest memory of the relay's process.
func (p plan) memoryPart(ctx context.Context) (goals []goal, err error) {
	w, err := start(ctx, 1, 1, []string{"ours"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	relay := w.children[0].Pid()
	for _, load := range []struct {
		name string
		run  func(context.Context, *pgconn.PgConn) (int64, error)
	}{{"COPY of 1 GiB to the client", copyGibibyteOut}, {"COPY of 1 GiB from the client", copyGibibyteIn}, {"a row of 500 MB", readRow}} {
		conn, err := w.connect(ctx, w.contenders[1])
		if err != nil {
			return nil, err
		}
		before, err := memory(relay, "VmHWM:")
		if err != nil {
			return nil, err
		}
		n, err := load.run(ctx, conn)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", load.name, err)
		}
		after, err := memory(relay, "VmHWM:")
		if err != nil {
			return nil, err
		}
		_ = conn.Close(ctx)
		fmt.Printf("%s: %d bytes; the relay's process had at most %.1f MiB of resident memory before, %.1f MiB after\n", load.name, n, float64(before)/(1<<20), float64(after)/(1<<20))
		goals = append(goals, goal{name: "memory", ours: fmt.Sprintf("+%dKiB", (after-before)>>10), peer: "8MiB", ratio: float64(after-before) / mayGrow, want: 1, atMost: true})
	}
	return goals, nil
}

func copyGibibyteOut(ctx context.Context, conn *pgconn.PgConn) (int64, error) {
	var n counted
	_, err := conn.CopyTo(ctx, &n, sqlOut)
	return int64(n), err
}

// repeated returns the same rows repeatedly.
type repeated struct {
	rows []byte
	at   int
}

func (r *repeated) Read(b []byte) (int, error) {
	n := copy(b, r.rows[r.at:])
	r.at = (r.at + n) % len(r.rows)
	return n, nil
}

func copyGibibyteIn(ctx context.Context, conn *pgconn.PgConn) (int64, error) {
	whole := int64(gibibyte / len(copied) * len(copied)) // it ends with a row
	_, err := conn.CopyFrom(ctx, io.LimitReader(&repeated{rows: copied}, whole), sqlIn)
	return whole, err
}

// readRow reads the row as bytes: a driver would store it.
func readRow(_ context.Context, conn *pgconn.PgConn) (n int64, err error) {
	hijacked, err := conn.Hijack()
	if err != nil {
		return 0, err
	}
	query, _ := (&pgproto3.Query{String: sqlOneRow}).Encode(nil)
	if _, err := hijacked.Conn.Write(query); err != nil {
		return 0, err
	}
	return readAnswer(hijacked.Conn)
}

// readAnswer reads up to ReadyForQuery.
func readAnswer(conn net.Conn) (total int64, err error) {
	end, _ := (&pgproto3.ReadyForQuery{TxStatus: 'I'}).Encode(nil)
	b, kept := make([]byte, 1<<20), 0
	for {
		n, err := conn.Read(b[kept:])
		total += int64(n)
		kept += n
		switch {
		case bytes.HasSuffix(b[:kept], end) && total >= rowBytes:
			return total, conn.Close()
		case err != nil:
			return total, err
		}
		kept = copy(b, b[max(0, kept-len(end)):kept])
	}
}

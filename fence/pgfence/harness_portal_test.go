package pgfence_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// portals is a session that is driven message by message, because portals with names and row limits are out of pgx's reach.
type portals struct {
	conn *pgconn.HijackedConn
}

// dial connects, with startup options such as "-c name=value". It is closed with the test.
func dial(t testing.TB, address string, options ...string) *portals {
	t.Helper()
	conn, err := connect(t, address, options...).PgConn().Hijack()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Conn.Close() })
	return &portals{conn: conn}
}

// reply is how PostgreSQL answered one step, or the query after it.
type reply struct {
	err    *pgconn.PgError
	values []string // the last row
	status byte     // of the transaction: 'I', 'T', 'E'
}

// step sends one step, and a query behind it without waiting. A step is a statement, or one of
//
//	\bind PORTAL STATEMENT    parses the statement and binds it to a portal
//	\execute PORTAL ROWS      reads at most so many rows from it; 0: all
//	\copy STATEMENT|DATA      COPY FROM STDIN; in DATA, | ends a line
func (p *portals) step(ctx context.Context, line, query string) (stepped, queried reply, err error) {
	f := p.conn.Frontend
	verb, rest, _ := strings.Cut(line, " ")
	data := ""
	switch verb {
	case `\bind`:
		portal, sql, _ := strings.Cut(rest, " ")
		f.Send(&pgproto3.Parse{Query: sql})
		f.Send(&pgproto3.Bind{DestinationPortal: portal})
		f.Send(&pgproto3.Sync{})
	case `\execute`:
		portal, rows, _ := strings.Cut(rest, " ")
		limit, err := strconv.ParseUint(rows, 10, 32)
		if err != nil {
			return reply{}, reply{}, err
		}
		f.Send(&pgproto3.Execute{Portal: portal, MaxRows: uint32(limit)})
		f.Send(&pgproto3.Sync{})
	case `\copy`:
		line, data, _ = strings.Cut(rest, "|")
		data = strings.ReplaceAll(data, "|", "\n") + "\n"
		fallthrough
	default:
		f.Send(&pgproto3.Query{String: line})
	}
	if data == "" {
		f.Send(&pgproto3.Query{String: query})
	}
	stop := context.AfterFunc(ctx, func() { _ = p.conn.Conn.Close() })
	defer stop()
	if stepped, err = p.receive(data); err != nil {
		return stepped, queried, err
	}
	if data != "" { // PostgreSQL takes no query before the data
		f.Send(&pgproto3.Query{String: query})
	}
	queried, err = p.receive("")
	return stepped, queried, err
}

func (p *portals) receive(data string) (r reply, err error) {
	f := p.conn.Frontend
	if err := f.Flush(); err != nil {
		return r, err
	}
	for {
		message, err := f.Receive()
		if err != nil {
			return r, fmt.Errorf("the connection ended: %w", err)
		}
		switch m := message.(type) {
		case *pgproto3.ErrorResponse:
			r.err = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.DataRow:
			r.values = r.values[:0]
			for _, v := range m.Values {
				r.values = append(r.values, string(v))
			}
		case *pgproto3.CopyInResponse:
			f.Send(&pgproto3.CopyData{Data: []byte(data)})
			f.Send(&pgproto3.CopyDone{})
			if err := f.Flush(); err != nil {
				return r, err
			}
		case *pgproto3.ReadyForQuery:
			r.status = m.TxStatus
			return r, nil
		}
	}
}

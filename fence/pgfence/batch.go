package pgfence

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// ExecBatch runs a batch of statements in a transaction under grants and commits it, all in one round trip: BEGIN,
// present the grants, the statements, COMMIT. Statements that are not prepared on the connection yet take one more.
// It returns the command tag of each statement.
//
// The outcomes are those of [InTx], but an [*UnknownError] can't be resolved if the connection was lost, because the
// transaction's ID would have come with the answer. The batch's queries must not have callbacks: these would run
// after the end of the transaction. With the simple protocol, which writes arguments into the statement's text, use
// InTx.
func ExecBatch(ctx context.Context, db Beginner, opts pgx.TxOptions, grants []fence.Grant, batch *pgx.Batch) ([]pgconn.CommandTag, error) {
	if err := core.ValidateGrants(grants); err != nil {
		return nil, err
	}
	if db == nil || batch == nil {
		return nil, &fence.InvalidError{Field: "database or batch", Reason: "is nil"}
	}
	for _, q := range batch.QueuedQueries {
		if q.Fn != nil {
			return nil, &fence.InvalidError{Field: "batch", Reason: "has a query with a callback"}
		}
	}
	if sendsLiterals(db) {
		return nil, &fence.InvalidError{Field: "query execution mode", Reason: "is the simple protocol, which would put seals into statements"}
	}
	var conn *pgx.Conn
	switch d := db.(type) {
	case *pgxpool.Pool:
		pooled, err := d.Acquire(ctx)
		if err != nil {
			return nil, fmt.Errorf("begin under %s: %w", core.GrantNames(grants), err)
		}
		defer pooled.Release()
		conn = pooled.Conn()
	case *pgxpool.Conn:
		conn = d.Conn()
	case *pgx.Conn:
		conn = d
	default:
		return nil, errors.New("pgfence: this Beginner can't begin a transaction in a batch")
	}
	warnings, err := watchCommit(ctx, conn)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("begin under %s: %w", core.GrantNames(grants), err)
	}
	r := pipelined{grants: grants}
	err = conn.SendBatch(ctx, r.whole(opts, batch)).Close()
	r.answered = !conn.IsClosed()
	if r.answered && conn.PgConn().TxStatus() != 'I' {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackPatience)
		defer cancel()
		if _, rollbackErr := conn.Exec(clean, "ROLLBACK"); rollbackErr != nil {
			_ = conn.Close(clean)
		}
		r.rolledBack = true
	}
	if err = r.outcome(err, warnings); err != nil {
		return nil, err
	}
	return r.tags, nil
}

// pipelined is the progress of a pipelined transaction.
type pipelined struct {
	grants     []fence.Grant
	mark       mark
	tags       []pgconn.CommandTag
	answered   bool // the server answered something
	first      bool // the first answer arrived
	begun      bool // the grants were presented
	asked      bool // the batch's statements succeeded, in the transaction that was begun
	committed  bool
	rolledBack bool
}

// whole puts the batch between the statements that begin and end the transaction.
func (p *pipelined) whole(opts pgx.TxOptions, batch *pgx.Batch) *pgx.Batch {
	whole := &pgx.Batch{}
	whole.Queue(beginSQL(opts))
	sql, args := core.Using(p.grants, core.SQLUseWithID, core.SQLUseManyWithID)
	whole.Queue(sql, args...).QueryRow(func(row pgx.Row) error {
		err := p.mark.scan(row)
		p.first = err == nil || !ended(err)
		p.begun = err == nil
		return err
	})
	for _, q := range batch.QueuedQueries {
		whole.Queue(q.SQL, q.Arguments...).Exec(func(tag pgconn.CommandTag) error {
			p.tags = append(p.tags, tag)
			return nil
		})
	}
	whole.Queue(core.SQLStillIn).Exec(func(pgconn.CommandTag) error {
		p.asked = true
		return nil
	})
	whole.Queue("COMMIT").Exec(func(pgconn.CommandTag) error {
		p.committed = true
		return nil
	})
	return whole
}

// outcome returns the transaction's outcome. err is the batch's.
func (p *pipelined) outcome(err error, warnings warningWatch) error {
	switch names := core.GrantNames(p.grants); {
	case p.committed && warnings.warned():
		return fmt.Errorf("commit under %s: %w", names, p.mark.unknown(ErrUnreplicated))
	case p.committed:
		return nil
	case ended(err) && (p.rolledBack || !p.begun || p.asked):
		return fmt.Errorf("transaction under %s: %w", names, Translate(err))
	case ended(err): // one statement ended the transaction, and another one failed
		return fmt.Errorf("transaction under %s: %w: %w", names, ErrTxEnded, Translate(err))
	case p.rolledBack, p.answered && !p.first: // for example if an argument can't be encoded
		return fmt.Errorf("transaction under %s: %w", names, err)
	default:
		return fmt.Errorf("transaction under %s: %w", names, p.mark.unknown(err))
	}
}

// beginSQL is the BEGIN statement with these modes.
func beginSQL(opts pgx.TxOptions) string {
	if opts.BeginQuery != "" {
		return opts.BeginQuery
	}
	sql := []string{"BEGIN"}
	if opts.IsoLevel != "" {
		sql = append(sql, "ISOLATION LEVEL "+string(opts.IsoLevel))
	}
	return strings.Join(append(sql, string(opts.AccessMode), string(opts.DeferrableMode)), " ")
}

package pgfence

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/groups"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Arm raises the fence of a resource to a new token and drains the transactions that passed the check under an older
// one. It takes one round trip if there are none. Otherwise it waits for the grace period, then ends their sessions.
// Concurrent calls are grouped into one transaction; a call that has to wait for writers runs alone.
//
// Arm is idempotent by token and seal hash. If an answer is lost, it retries once on a working connection. The
// outcomes:
//   - nil: the fence holds exactly this grant, and no older one can commit any more.
//   - [*fence.NotRaisedError]: the recorded token is not lower; nothing was changed.
//   - [*fence.UndrainedError]: raised, but the new holder must not start yet. If its Token is 0: not raised, because
//     a transaction that raised the fence with an unsealed token has not ended. Arming the same grant again retries.
//   - joined with [fence.ErrUnknown]: it may be raised; with [ErrUnreplicated] too, it is raised, but a failover may
//     undo that. Arming the same grant again finds out.
//   - [*fence.InvalidError], or PostgreSQL's error: nothing was changed.
//
// Several fences are raised in one transaction of their own, all or none, in two round trips if there are no writers to
// wait for. All drains share one grace period, and the outcomes are those of all resources together: a
// [*fence.NotRaisedError] names the first resource, in byte order, whose recorded token is not lower. The order of the
// resources does not matter: two calls with common resources can't deadlock.
func (f *Fence) Arm(ctx context.Context, all ...fence.Arming) error {
	if err := core.ValidateArmings(all); err != nil {
		return err
	}
	var err error
	if len(all) == 1 {
		err = f.armInGroup(ctx, all[0])
	} else {
		err = f.armAll(ctx, all)
	}
	if errors.Is(err, fence.ErrNotRaised) {
		f.learnFloors(ctx)
	}
	return err
}

// armInGroup arms in a group, or alone if writers have to be waited for.
func (f *Fence) armInGroup(ctx context.Context, a fence.Arming) error {
	got, err := f.armings.Do(ctx, a)
	switch {
	case err != nil:
		return fmt.Errorf("arm %q to %d: %w", a.Resource, a.Token, err)
	case got.Done:
		return got.Err
	}
	err = f.armAlone(ctx, a)
	if got.Lost && !core.Settles(err) {
		err = fmt.Errorf("%w: %w", fence.ErrUnknown, err)
	}
	return err
}

// armAlone raises, and drains after that commit. It waits for writers and for concurrent raises.
func (f *Fence) armAlone(ctx context.Context, a fence.Arming) error {
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("arm %q: %w", a.Resource, err)
	}
	return f.twice(ctx, conn, fmt.Sprintf("arm %q to %d", a.Resource, a.Token), func(conn *pgxpool.Conn) (answered bool, err error) {
		return f.armAnswered(ctx, conn, a)
	})
}

// armGroup arms in one transaction those that have nothing to wait for.
func (f *Fence) armGroup(ctx context.Context, all []fence.Arming) []groups.Settled {
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return groups.Unsettled(len(all), false)
	}
	defer conn.Release()
	warnings, err := watchCommit(ctx, conn.Conn())
	if err != nil {
		return groups.Unsettled(len(all), false)
	}
	armed, err := armOn(ctx, conn, all)
	if err != nil || len(armed) != len(all) {
		return groups.Unsettled(len(all), err == nil || !ended(err))
	}
	answers := make([]groups.Settled, len(all))
	for i, a := range all {
		if armed[i] {
			answers[i] = groups.Settled{Done: true, Err: warnings.orUnknown(fmt.Sprintf("arm %q to %d", a.Resource, a.Token))}
		}
	}
	return answers
}

// armOn arms on one connection and reports which fences were raised.
func armOn(ctx context.Context, conn *pgxpool.Conn, all []fence.Arming) (armed []bool, err error) {
	mode := conn.Conn().Config().DefaultQueryExecMode
	if mode == pgx.QueryExecModeSimpleProtocol {
		mode = pgx.QueryExecModeExec // keeps the hashes out of the statement's text
	}
	if len(all) == 1 { // the cheaper statement
		a := all[0]
		armed = make([]bool, 1)
		return armed, conn.QueryRow(ctx, core.SQLArm, mode, a.Resource, int64(a.Token), a.SealHash, a.Holder, 0).Scan(&armed[0])
	}
	resources, tokens, hashes, holders := columns(all)
	err = conn.QueryRow(ctx, core.SQLArmGroup, mode, resources, tokens, hashes, holders).Scan(&armed)
	return armed, err
}

// columns splits armings into one array for each parameter.
func columns(all []fence.Arming) (resources []string, tokens []int64, hashes [][]byte, holders []string) {
	for _, a := range all {
		resources, tokens = append(resources, a.Resource), append(tokens, int64(a.Token))
		hashes, holders = append(hashes, a.SealHash), append(holders, a.Holder)
	}
	return resources, tokens, hashes, holders
}

// twice runs arm on a connection and releases it. If the connection is lost, it runs arm again on one that works.
func (f *Fence) twice(ctx context.Context, conn *pgxpool.Conn, what string, arm func(*pgxpool.Conn) (answered bool, err error)) error {
	return core.Twice(what, func() (bool, error) {
		defer conn.Release()
		return arm(conn)
	}, func() (bool, error) {
		conn, err := f.acquireAnswering(ctx)
		if err != nil {
			return false, nil // the first error is more informative
		}
		defer conn.Release()
		return arm(conn)
	})
}

// acquireAnswering returns a connection that answers. It discards the pool's connections that broke along with the
// lost one.
func (f *Fence) acquireAnswering(ctx context.Context) (*pgxpool.Conn, error) {
	for range f.pool.Config().MaxConns + 1 {
		conn, err := f.pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		if err = conn.Ping(ctx); err == nil {
			return conn, nil
		}
		conn.Release() // broken: the pool discards it
	}
	return nil, errors.New("no connection answers")
}

// armAnswered is raiseAndDrainOn with a check for a synchronous standby. Arming again waits for the standby again,
// because every raise writes, even one that changes nothing.
func (f *Fence) armAnswered(ctx context.Context, conn *pgxpool.Conn, a fence.Arming) (answered bool, err error) {
	warnings, err := watchCommit(ctx, conn.Conn())
	if err != nil {
		return ended(err) || errors.Is(err, ErrNoticesUnavailable), fmt.Errorf("arm %q: %w", a.Resource, err)
	}
	if answered, err = f.raiseAndDrainOn(ctx, conn, a); err != nil {
		return answered, err
	}
	return answered, warnings.orUnknown(fmt.Sprintf("arm %q to %d", a.Resource, a.Token))
}

// raiseAndDrainOn raises and drains on one connection: two transactions in one round trip.
func (f *Fence) raiseAndDrainOn(ctx context.Context, conn *pgxpool.Conn, a fence.Arming) (answered bool, err error) {
	p := conn.Conn().PgConn().StartPipeline(ctx)
	defer func() { _ = p.Close() }() // a broken connection's error was returned already
	grant := [][]byte{[]byte(a.Resource), []byte(a.Token.String()), a.SealHash}
	limit := micros(f.patience.LimitWithin(ctx))
	p.SendQueryParams(core.SQLRaise, append(grant[:3:3], []byte(a.Holder), limit),
		[]uint32{pgtype.TextOID, pgtype.Int8OID, pgtype.ByteaOID, pgtype.TextOID, pgtype.Int8OID}, []int16{0, 0, 1, 0, 0}, resultFormats)
	p.SendPipelineSync() // draining must begin after this commit
	p.SendQueryParams(core.SQLDrainCount, append(grant[:3:3], micros(f.patience.Grace), micros(f.patience.LimitWithin(ctx))),
		[]uint32{pgtype.TextOID, pgtype.Int8OID, pgtype.ByteaOID, pgtype.Int8OID, pgtype.Int8OID}, []int16{0, 0, 1, 0, 0}, resultFormats)
	p.SendPipelineSync()
	if err := p.Flush(); err != nil {
		return false, err
	}

	raised, recorded, _, err := answer(p)
	if answered, err := reports.Raised(a, raised, recorded, err); err != nil {
		return answered, err
	}
	began := time.Now()
	ours, recorded, sessions, err := answer(p)
	if answered, err = reports.Drained(a, ours, recorded, err); err == nil && f.drained != nil {
		f.drained(time.Since(began), sessions)
	}
	return answered, err
}

func micros(d time.Duration) []byte { return strconv.AppendInt(nil, d.Microseconds(), 10) }

// resultFormats requests all columns in binary.
var resultFormats = []int16{1}

// answer reads one segment of the pipeline up to its Sync, which is after its commit: one row of a boolean, a token
// (may be NULL), and, for a drain, the number of ended sessions.
func answer(p *pgconn.Pipeline) (yes bool, token fence.Token, sessions int, err error) {
	for {
		result, resultErr := p.GetResults()
		if resultErr != nil {
			err = resultErr
			if !ended(err) {
				return false, 0, 0, err // no further results follow
			}
			continue
		}
		switch r := result.(type) {
		case *pgconn.ResultReader:
			read := r.Read()
			if read.Err != nil {
				err = read.Err
			} else if len(read.Rows) == 1 {
				row := read.Rows[0]
				yes = len(row[0]) == 1 && row[0][0] == 1
				if len(row[1]) == 8 {
					token = fence.Token(binary.BigEndian.Uint64(row[1])) // a bigint in binary
				}
				if len(row) > 2 && len(row[2]) == 4 {
					sessions = int(binary.BigEndian.Uint32(row[2]))
				}
			}
		case *pgconn.PipelineSync:
			return yes && err == nil, token, sessions, err
		default:
			return false, 0, 0, fmt.Errorf("unexpected %T in the pipeline", result)
		}
	}
}

//go:build unix

package pgwire_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/pgwire"
)

// arming raises the fence and takes its time, as an acquisition does that waits for an older writer's transaction.
type arming struct {
	leasing.Source

	other   string        // who has the lock; "": the acquisition
	looks   chan struct{} // one for each look at the nonce
	outcome error
	request atomic.Pointer[leasing.Request]
}

func (a *arming) Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	a.request.Store(&r)
	for range 2 {
		select {
		case <-a.looks:
		case <-ctx.Done():
			return leasing.Lease{}, ctx.Err()
		}
	}
	return leaseOf(r), a.outcome
}

func (a *arming) Inspect(context.Context, string) (leasing.Inspection, error) {
	return leasing.Inspection{Locked: true, Holder: cmp.Or(a.other, a.request.Load().Holder)}, nil
}

func (a *arming) Extend(context.Context, leasing.Ref, time.Duration) (time.Duration, error) {
	return 0, errors.New("not now")
}

func (a *arming) Release(context.Context, leasing.Ref) error { return nil }

// login starts a session that waits for a lease of one process run.
func (a *arming) login(t *testing.T) *pgproto3.Frontend {
	t.Helper()
	a.looks = make(chan struct{})
	r := start(t, "tcp", letsIn(t), "shop", func(c *pgwire.Config) {
		c.Leases, c.LeaseRules, c.MaxLeaseWait = a, []pgwire.LeaseRule{{User: "*", Resource: "*"}}, time.Minute
		c.Nonce = func(ctx context.Context, _ string, _ []byte) (known fence.NonceRecord, _ error) {
			if a.request.Load() == nil { // before the acquisition
				return known, nil
			}
			select {
			case a.looks <- struct{}{}:
			case <-ctx.Done():
			}
			return fence.NonceRecord{Armed: 2, Recorded: 2}, nil
		}
	})
	conn := r.dial()
	t.Cleanup(func() { _ = conn.Close() })
	send(t, conn, &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{
		"user": "ada", "database": "shop", "fence.lease": "orders/1;once=0b64e2f4-5e4f-4f4c-9a68-0d2d2f0c9c11;wait=30s",
	}})
	return pgproto3.NewFrontend(conn, conn)
}

// loginAnswer returns the last message of the login.
func loginAnswer(t *testing.T, frontend *pgproto3.Frontend) string {
	t.Helper()
	for {
		switch m, err := frontend.Receive(); m := m.(type) {
		case *pgproto3.ReadyForQuery:
			return "ready"
		case *pgproto3.ErrorResponse:
			return fmt.Sprintf("%s %s %s %s", m.Code, m.Message, m.Detail, m.Hint)
		default:
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestALoginThatArmsIsNotAnotherConnectionOfItsRun(t *testing.T) {
	t.Parallel()
	var a arming
	if got := loginAnswer(t, a.login(t)); got != "ready" {
		t.Errorf("got %s", got)
	}
	if a.request.Load().Repeatable {
		t.Error("nobody repeats a login's request: its seal is known to this session alone")
	}
}

func TestAnotherConnectionOfTheRunIsRefusedWhileItWaits(t *testing.T) {
	t.Parallel()
	a := arming{other: "ada at another"}
	if got := loginAnswer(t, a.login(t)); !strings.HasPrefix(got, "55P03") || !strings.Contains(got, "of this process run") {
		t.Errorf("got %s", got)
	}
}

func TestALoginWhoseArmingIsUnknownIsNotToldThatNothingWasDone(t *testing.T) {
	t.Parallel()
	a := arming{outcome: fmt.Errorf("arm: %w", fence.ErrUnknown)}
	if got := loginAnswer(t, a.login(t)); !strings.HasPrefix(got, "57P03") || strings.Contains(got, "Nothing was done") {
		t.Errorf("got %s", got)
	}
}

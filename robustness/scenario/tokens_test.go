package scenario_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// "The algorithm does not produce any number that is guaranteed to increase every time a client acquires a lock." The
// plain library has a random value.
func TestKleppmannTheLockHasNoFencingToken(t *testing.T) {
	besides(t, options{}, func(t *testing.T, w *world) {
		c := w.client(w.addrs)
		var tokens []string
		for range 20 {
			must(t, c.acquire(w.bounded()))
			tokens = append(tokens, c.token())
			must(t, c.release(t.Context()))
		}
		rising := slices.IsSortedFunc(tokens, func(a, b string) int {
			if len(a) != len(b) {
				return len(a) - len(b)
			}
			return strings.Compare(a, b)
		})
		if rising != w.fenced {
			t.Errorf("whether the tokens rise: %v (%v)", rising, tokens)
		}
	})
}

// "It's not obvious to me how one would change the Redlock algorithm to start generating fencing tokens. Simply keeping
// a counter on one Redis node would not be sufficient, because that node may fail." Here it fails, and returns empty:
// the new holder's token is lower than the row's, so the fence refuses it and accepts the stale holder's write.
func TestKleppmannACounterOnOneNodeIsNoFencingToken(t *testing.T) {
	besides(t, options{own: true}, func(t *testing.T, w *world) {
		first, second := w.client(w.addrs), w.client(w.addrs)
		before := w.counted(first)
		for range 2 {
			must(t, first.release(t.Context()))
			before = w.counted(first)
		}
		must(t, w.numbered(first, before, "begun"))
		for _, node := range w.nodes { // the counter's node among them
			must(t, node.Restart(t.Context()))
		}
		after := w.counted(second)
		if rising := after > before; rising != w.fenced {
			t.Errorf("the token after the loss is %d, and %d before it", after, before)
		}
		wantNew := w.numbered(second, after, "new")
		stale := w.numbered(first, before, "old")
		if w.fenced {
			must(t, wantNew)
			w.wantStaleWrite(stale)
			return
		}
		if !errors.Is(wantNew, errFenced) || stale != nil || w.value() != "old" {
			t.Errorf("the new holder: %v; the stale one: %v; the row is %q", wantNew, stale, w.value())
		}
	})
}

// counted acquires, and increments a counter: on node A, because the plain library has no token.
func (w *world) counted(c *client) (token int64) {
	w.t.Helper()
	ctx := w.bounded()
	for err := errNotHeld; err != nil; { // lost nodes are admitted after a while
		if err = c.acquire(ctx); ctx.Err() != nil {
			w.t.Fatal(err)
		}
	}
	if f, ok := c.lessor.(*fenced); ok {
		return int64(f.grant.Token)
	}
	must(w.t, w.on(w.addrs[0], func(ctx context.Context, node *redis.Client) (err error) {
		token, err = node.Incr(ctx, w.prefix+":counter").Result()
		return err
	}))
	return token
}

var errFenced = errors.New("the row has a higher token")

// numbered writes with a token. With the plain library, which has no fence, the row records the highest token.
func (w *world) numbered(c *client, token int64, value string) error {
	if w.fenced {
		return c.write(w.t.Context(), value)
	}
	tag, err := c.conn.Exec(w.t.Context(),
		"UPDATE plain SET value = $2, token = $3 WHERE resource = $1 AND token <= $3", resource, value, token)
	if err == nil && tag.RowsAffected() == 0 {
		return errFenced
	}
	return err
}

// A write that passed the check may still be in an open transaction when the next holder reads. Arming ends that
// transaction before the new holder gets the lease. With the plain library it commits at any time, and the new holder
// has computed from an overwritten value.
func TestKleppmannATransactionIsOpenWhenTheNextHolderReads(t *testing.T) {
	besides(t, options{}, func(t *testing.T, w *world) {
		first, second := w.client(w.addrs), w.client(w.addrs)
		must(t, first.acquire(w.bounded()))
		err := w.within(first, func(tx pgx.Tx, table string) error {
			_, err := tx.Exec(t.Context(), "UPDATE "+table+" SET value = 'old' WHERE resource = $1", resource)
			if err != nil {
				return err
			}
			must(t, second.acquire(w.bounded()))
			if read := w.value(); read != "" {
				t.Errorf("the new holder reads %q", read)
			}
			return nil
		})
		value := w.value()
		if !w.fenced && (err != nil || value != "old") {
			t.Errorf("the plain library should have lost: %v, the row is %q", err, value)
		}
		if errors.Is(err, fence.ErrUnknown) { // it was ended during its commit
			err = pgfence.Outcome(w.bounded(), w.admin, err)
		}
		if w.fenced && (err == nil || errors.Is(err, fence.ErrUnknown) || value != "") {
			t.Errorf("the transaction of the older grant: %v, the row is %q", err, value)
		}
	})
}

// within runs fn in a transaction of the client, which presents its grant if it has one.
func (w *world) within(c *client, fn func(tx pgx.Tx, table string) error) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if f, ok := c.lessor.(*fenced); ok {
		return pgfence.InTx(ctx, c.conn, f.grant, func(tx pgx.Tx) error { return fn(tx, "guarded") })
	}
	return pgx.BeginFunc(ctx, c.conn, func(tx pgx.Tx) error { return fn(tx, "plain") })
}

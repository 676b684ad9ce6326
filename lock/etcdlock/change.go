package etcdlock

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/groups"
	"github.com/fencegate/fencegate/internal/leases"
)

// change is one extension or release.
type change struct {
	ref   leasing.Ref
	lease *granted // to which an extension moves the key; nil: a release
	done  bool     // the key was there, with this owner
}

// Extend moves the resource's key to an etcd lease that lives longer.
func (s *store) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Time, error) {
	var deadline time.Time
	err := s.change(ctx, fmt.Sprintf("extend %q", ref.Resource), callTries, func() (*change, error) {
		lease, err := s.grants.get(ctx, ttl)
		if err != nil {
			return nil, err
		}
		deadline = lease.good(ttl)
		return &change{ref: ref, lease: lease}, nil
	})
	return deadline, err
}

// Free deletes the resource's key, if it is the owner's.
func (s *store) Free(ctx context.Context, ref leasing.Ref) error {
	return s.change(ctx, fmt.Sprintf("release %q", ref.Resource), 2*callTries, func() (*change, error) { return &change{ref: ref}, nil })
}

// change sends a change until etcd has answered it, a bounded number of times.
func (s *store) change(ctx context.Context, doing string, tries int, next func() (*change, error)) error {
	lost := false // a release whose answer was lost may have been carried out
	for try := 1; ; try++ {
		c, err := next()
		if err == nil {
			err = s.sendChange(ctx, c)
		}
		switch {
		case err == nil && (c.done || lost && c.lease == nil):
			return nil
		case err == nil:
			return fmt.Errorf("%s: %w", doing, leasing.ErrLost)
		case is(err, rpctypes.ErrLeaseNotFound) && c != nil && c.lease != nil:
			s.grants.drop(c.lease)
		case !mayPass(err):
			return failure(ctx, doing, err)
		default:
			lost = lost || c != nil && !refused(err)
			leases.Pause(ctx, callPause)
		}
		if try == tries || ctx.Err() != nil {
			return failure(ctx, doing, err)
		}
	}
}

func (s *store) sendChange(ctx context.Context, c *change) error {
	if got, err := s.changes.Do(ctx, c); err != nil || got.Done {
		return cmp.Or(err, got.Err)
	}
	answer, err := s.do(ctx, s.changeOp(c))
	if err == nil {
		c.done = answer.Succeeded
	}
	return err
}

// changeGroup sends several, each of another resource, in one transaction.
func (s *store) changeGroup(ctx context.Context, all []*change) []groups.Settled {
	settled := groups.Unsettled(len(all), false)
	ops := make([]clientv3.Op, len(all))
	for i, c := range all {
		ops[i] = s.changeOp(c)
	}
	answer, err := s.do(ctx, clientv3.OpTxn(nil, ops, nil))
	if is(err, rpctypes.ErrTooManyOps) || is(err, rpctypes.ErrLeaseNotFound) {
		return settled // each goes alone
	}
	for i, c := range all {
		if err == nil {
			c.done = answer.Responses[i].GetResponseTxn().Succeeded
		}
		settled[i] = groups.Settled{Done: true, Err: err}
	}
	return settled
}

func (s *store) changeOp(c *change) clientv3.Op {
	lock := s.lock(c.ref.Resource)
	then := clientv3.OpDelete(lock)
	if c.lease != nil {
		then = clientv3.OpPut(lock, c.ref.Owner, clientv3.WithLease(c.lease.id))
	}
	return clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value(lock), "=", c.ref.Owner)}, []clientv3.Op{then}, nil)
}

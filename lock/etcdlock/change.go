package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/groups"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

// overtakenTries bounds how often an extension is resent after another extension changed the key first.
const overtakenTries = 6

// errOvertaken reports that another extension of the same lease changed the key first.
var errOvertaken = errors.New("other calls extended the lease at the same time; try again")

// change is one extension or release.
type change struct {
	ref   leasing.Ref
	lease *granted // the etcd lease of an extension; nil: a release
	// an extension: the key's revision, read before the etcd
	// lease was chosen, so that etcd refuses an overtaken message
	revision int64

	done  bool  // the key existed with this owner
	found int64 // the key's revision after the change; 0: the key is not this owner's
}

// Extend attaches the resource's key to an etcd lease that lives longer.
func (s *store) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	var deadline clock.Instant
	err := s.change(ctx, fmt.Sprintf("extend %q", ref.Resource), callTries, func(found int64) (*change, error) {
		if found == 0 {
			found = s.revisions.last(ref)
		}
		lease, err := s.grants.get(ctx, ttl)
		if err != nil {
			return nil, err
		}
		deadline = lease.good(ttl)
		return &change{ref: ref, lease: lease, revision: found}, nil
	})
	return deadline, err
}

// Free deletes the resource's key if it belongs to the owner.
func (s *store) Free(ctx context.Context, ref leasing.Ref) error {
	return s.change(ctx, fmt.Sprintf("release %q", ref.Resource), 2*callTries, func(int64) (*change, error) { return &change{ref: ref}, nil })
}

// change sends a change until etcd answers, a bounded number of times. found is the revision at which the previous try
// found the owner's key; 0: it found none, or there was no previous try.
func (s *store) change(ctx context.Context, doing string, tries int, next func(found int64) (*change, error)) error {
	lost := false // a release whose answer was lost may have been carried out
	found, failed := int64(0), 0
	for try := 1; ; try++ {
		c, err := next(found)
		if err == nil {
			err = s.sendChange(ctx, c)
		}
		switch {
		case err == nil && (c.done || lost && c.lease == nil):
			s.revisions.note(c)
			return nil
		case err == nil && c.found == 0:
			s.revisions.forget(c.ref.Owner)
			return fmt.Errorf("%s: %w", doing, leasing.ErrLost)
		// another extension was first, or the known revision predates one of another process
		case err == nil:
			found, err = c.found, errOvertaken
		case is(err, rpctypes.ErrLeaseNotFound) && c != nil && c.lease != nil:
			s.grants.drop(c.lease)
			failed++
		case !mayPass(err):
			return failure(ctx, doing, err)
		default:
			lost = lost || c != nil && !refused(err)
			failed++
			leases.Pause(ctx, callPause)
		}
		if failed == tries || try == tries+overtakenTries || ctx.Err() != nil {
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
		c.read((*etcdserverpb.TxnResponse)(answer), answer.Header.Revision)
	}
	return err
}

// changeGroup sends several changes, each of another resource, in one transaction.
func (s *store) changeGroup(ctx context.Context, all []*change) []groups.Settled {
	settled := groups.Unsettled(len(all), false)
	ops := make([]clientv3.Op, len(all))
	for i, c := range all {
		ops[i] = s.changeOp(c)
	}
	answer, err := s.do(ctx, clientv3.OpTxn(nil, ops, nil))
	if is(err, rpctypes.ErrTooManyOps) || is(err, rpctypes.ErrLeaseNotFound) {
		return settled // each is sent alone
	}
	for i, c := range all {
		if err == nil {
			c.read(answer.Responses[i].GetResponseTxn(), answer.Header.Revision)
		}
		settled[i] = groups.Settled{Done: true, Err: err}
	}
	return settled
}

func (s *store) changeOp(c *change) clientv3.Op {
	lock := s.lock(c.ref.Resource)
	ifs := []clientv3.Cmp{clientv3.Compare(clientv3.Value(lock), "=", c.ref.Owner)}
	if c.lease == nil {
		return clientv3.OpTxn(ifs, []clientv3.Op{clientv3.OpDelete(lock)}, nil)
	}
	ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(lock), "=", c.revision))
	move := clientv3.OpPut(lock, c.ref.Owner, clientv3.WithLease(c.lease.id))
	return clientv3.OpTxn(ifs, []clientv3.Op{move}, []clientv3.Op{clientv3.OpGet(lock)})
}

// read stores etcd's answer. If the key already has the etcd lease, a message whose answer was lost or an extension
// that shares the etcd lease moved it.
func (c *change) read(answer *etcdserverpb.TxnResponse, revision int64) {
	c.done, c.found = answer.Succeeded, 0
	if answer.Succeeded {
		c.found = revision
		return
	}
	if c.lease == nil {
		return
	}
	if locks := answer.Responses[0].GetResponseRange().Kvs; len(locks) > 0 && string(locks[0].Value) == c.ref.Owner {
		c.done, c.found = clientv3.LeaseID(locks[0].Lease) == c.lease.id, locks[0].ModRevision
	}
}

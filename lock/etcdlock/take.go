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

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/groups"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

// takeTries bounds how often an acquisition is sent again, for any reason.
const takeTries = 6

// errMoved reports that another process has raised the base.
var errMoved = errors.New("the token base was raised concurrently; try again")

// attempt is one transaction that creates the key of a resource.
type attempt struct {
	r        leasing.Request
	owner    leases.Owner
	base     *base
	lease    *granted
	deadline clock.Instant
	behind   bool   // it queues behind the waiters
	place    *place // its place in the queue; nil: it does not join

	answer *snapshot // etcd's answer
}

// snapshot is what etcd reported about a resource.
type snapshot struct {
	created  int64 // the key's create revision; 0: it was not created
	revision int64 // of the answer
	base     *etcdserverpb.RangeResponse
	lock     *etcdserverpb.RangeResponse
	line     *etcdserverpb.RangeResponse // nil: it was not read
}

func (a *attempt) doing() string { return fmt.Sprintf("acquire %q", a.r.Resource) }

func (a *attempt) taken() leases.Taken {
	return leases.Taken{
		Resource: a.r.Resource, Owner: a.owner.String(), Token: a.base.value + fence.Token(a.answer.created), Deadline: a.deadline,
	}
}

// Take takes what is free. Concurrent requests are grouped.
func (s *store) Take(ctx context.Context, r leasing.Request) (leases.Taken, error) {
	taken, last, err := s.take(ctx, &attempt{r: r})
	held, isHeld := errors.AsType[*leasing.HeldError](err)
	if !isHeld || len(last.lock.Kvs) == 0 {
		return taken, err
	}
	// The remaining time is a hint; without it the answer is the same.
	if left, leftErr := s.left(ctx, clientv3.LeaseID(last.lock.Kvs[0].Lease)); leftErr == nil {
		held.RetryAfter = max(left, 0)
	}
	return taken, err
}

// take sends an acquisition until etcd answers, a bounded number of times. Each try has its own owner, so that a try
// whose answer was lost can be recognized. If it succeeded after all, its lease is the caller's.
func (s *store) take(ctx context.Context, like *attempt) (leases.Taken, *snapshot, error) {
	var lost []*attempt // their outcome is unknown
	defer func() {
		if len(lost) > 0 {
			s.env.Life.InBackground(func(ctx context.Context) { s.giveBack(ctx, lost) })
		}
	}()
	failed := 0
	for try := 1; ; try++ {
		a, err := s.attempt(ctx, like)
		if err == nil {
			if err = s.send(ctx, a); err != nil && !refused(err) {
				lost = append(lost, a)
			}
		}
		if err == nil {
			var got *attempt
			got, lost = given(a, lost)
			if got != nil {
				return got.taken(), got.answer, nil
			}
			if err = a.refusal(); err != nil {
				return leases.Taken{}, a.answer, err
			}
			_, err = s.setBase((*clientv3.GetResponse)(a.answer.base))
			err = cmp.Or(err, errMoved)
		}
		if mayPass(err) {
			failed++
			leases.Pause(ctx, callPause)
		}
		if failed == callTries || try == takeTries || ctx.Err() != nil || !s.again(a, err) {
			return leases.Taken{}, nil, failure(ctx, like.doing(), err)
		}
	}
}

// again reports whether a failed attempt should be retried.
func (s *store) again(a *attempt, err error) bool {
	if is(err, rpctypes.ErrLeaseNotFound) && a != nil { // the etcd lease ended during a pause, or was revoked
		s.grants.drop(a.lease)
		return true
	}
	return errors.Is(err, errMoved) || mayPass(err)
}

// given returns the attempt to which etcd gave the resource: a, one whose answer was lost, or nil.
func given(a *attempt, lost []*attempt) (got *attempt, others []*attempt) {
	if a.answer.created > 0 {
		return a, lost
	}
	for i, earlier := range lost {
		if earlier.find(a.answer) {
			return earlier, append(lost[:i:i], lost[i+1:]...)
		}
	}
	return nil, lost
}

// attempt prepares a new attempt. Its deadline counts from before it is sent.
func (s *store) attempt(ctx context.Context, like *attempt) (*attempt, error) {
	b, err := s.readBase(ctx, false)
	if err != nil {
		return nil, err
	}
	lease, err := s.grants.get(ctx, like.r.TTL)
	if err != nil {
		return nil, err
	}
	if like.place != nil {
		if like.place.lease, err = s.grants.get(ctx, placeTTL); err != nil {
			return nil, err
		}
	}
	a := *like
	a.base, a.lease, a.owner, a.deadline = b, lease, leases.NewOwner(b.value, like.r.Holder), lease.good(like.r.TTL)
	return &a, nil
}

// find reports whether this attempt, whose answer was lost, holds the resource.
func (a *attempt) find(s *snapshot) bool {
	if len(s.lock.Kvs) == 0 || string(s.lock.Kvs[0].Value) != a.owner.String() {
		return false
	}
	a.answer = &snapshot{created: s.lock.Kvs[0].CreateRevision, revision: s.revision, line: s.line}
	return true
}

// refusal returns why the resource was not given; nil: the base had changed.
func (a *attempt) refusal() error {
	if locks := a.answer.lock.Kvs; len(locks) > 0 {
		held := &leasing.HeldError{Resource: a.r.Resource}
		if o, ok := leases.ParseOwner(string(locks[0].Value)); ok {
			held.Holder = o.Holder
		}
		return held
	}
	if base := a.answer.base.Kvs; a.behind && (len(base) == 0 && a.base.text == "" || len(base) > 0 && string(base[0].Value) == a.base.text) {
		return &leasing.HeldError{Resource: a.r.Resource} // others are before it in the queue
	}
	return nil
}

// send sends one acquisition. It is grouped with others unless it joins the queue.
func (s *store) send(ctx context.Context, a *attempt) error {
	if a.place == nil {
		if got, err := s.takes.Do(ctx, a); err != nil || got.Done {
			return cmp.Or(err, got.Err)
		}
	}
	answer, err := s.do(ctx, s.takeOp(a))
	if err == nil {
		a.read((*etcdserverpb.TxnResponse)(answer), answer.Header.Revision)
	}
	return err
}

// takeGroup sends several acquisitions, each of another resource, in one transaction.
func (s *store) takeGroup(ctx context.Context, all []*attempt) []groups.Settled {
	settled := groups.Unsettled(len(all), false)
	ops := make([]clientv3.Op, len(all))
	for i, a := range all {
		ops[i] = s.takeOp(a)
	}
	answer, err := s.do(ctx, clientv3.OpTxn(nil, ops, nil))
	if is(err, rpctypes.ErrTooManyOps) {
		return settled // each is sent alone
	}
	for i, a := range all {
		if err == nil {
			a.read(answer.Responses[i].GetResponseTxn(), answer.Header.Revision)
		}
		settled[i] = groups.Settled{Done: true, Err: err}
	}
	return settled
}

// takeOp creates the resource's key if it is absent, nobody is before it in the queue, and the base is unchanged.
// Otherwise it reads the reason for the refusal, and keeps the place in the queue.
func (s *store) takeOp(a *attempt) clientv3.Op {
	lock, line := s.lock(a.r.Resource), s.line(a.r.Resource)
	ifs := []clientv3.Cmp{a.base.unchanged(s.baseKey()), clientv3.Compare(clientv3.CreateRevision(lock), "=", 0)}
	then := []clientv3.Op{clientv3.OpPut(lock, a.owner.String(), clientv3.WithLease(a.lease.id))}
	otherwise := []clientv3.Op{clientv3.OpGet(s.baseKey()), clientv3.OpGet(lock)}
	switch {
	case a.place != nil && a.place.created > 0:
		ifs = append(ifs, clientv3.Compare(clientv3.CreateRevision(line), ">", a.place.created-1).WithPrefix())
		then = append(then, clientv3.OpDelete(a.place.key))
	case a.behind:
		ifs = append(ifs, clientv3.Compare(clientv3.CreateRevision(line), "=", 0).WithPrefix())
	}
	if a.place != nil {
		otherwise = append(otherwise, clientv3.OpPut(a.place.key, "", clientv3.WithLease(a.place.lease.id)),
			clientv3.OpGet(line, clientv3.WithPrefix(), clientv3.WithKeysOnly()))
	}
	return clientv3.OpTxn(ifs, then, otherwise)
}

// read stores etcd's answer.
func (a *attempt) read(answer *etcdserverpb.TxnResponse, revision int64) {
	a.answer = &snapshot{revision: revision}
	if answer.Succeeded {
		a.answer.created = revision
		return
	}
	a.answer.base, a.answer.lock = answer.Responses[0].GetResponseRange(), answer.Responses[1].GetResponseRange()
	if a.place != nil {
		a.answer.line = answer.Responses[3].GetResponseRange()
	}
}

// refused reports whether an error means that etcd did nothing.
func refused(err error) bool {
	return is(err, rpctypes.ErrLeaseNotFound) || is(err, rpctypes.ErrNoLeader) || !mayPass(err) && !isContext(err)
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, fence.ErrUnknown) || errors.Is(err, leasing.ErrClosed)
}

const (
	// backAnswers is how often etcd has to answer that nothing is there, since an attempt may still be on its way.
	backAnswers = 4
	backPause   = 200 * time.Millisecond
	backPauses  = 2 * time.Second // at most, while etcd is unavailable
)

// giveBack frees what attempts whose answers were lost may have taken. If etcd does not answer, it retries for as long
// as their leases may live: a leader that was cut off commits its pending proposals when it is back.
func (s *store) giveBack(ctx context.Context, lost []*attempt) {
	for _, a := range lost {
		end, pause := a.deadline.Add(2*ahead), backPause
		for answers := 0; answers < backAnswers && !end.Passed() && ctx.Err() == nil; {
			leases.Pause(ctx, pause)
			err := s.Free(ctx, leasing.Ref{Resource: a.r.Resource, Owner: a.owner.String()})
			switch {
			case err == nil:
				answers = backAnswers
			case errors.Is(err, leasing.ErrLost):
				answers++
			default:
				pause = min(2*pause, backPauses)
			}
		}
	}
}

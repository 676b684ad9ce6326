package etcdlock

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/groups"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

const (
	// callTimeout bounds one call to etcd: a few elections.
	callTimeout = 4 * time.Second
	// groupTimeout exceeds callTimeout, so that the call's own bound comes first.
	groupTimeout = callTimeout + time.Second
	// callTries bounds how often a call is made that etcd did not answer, or answered with a temporary error.
	callTries = 2
	// callPause is the pause between two tries.
	callPause = 50 * time.Millisecond
)

// store keeps the leases in etcd. Below the prefix are
//
//	base              what create revisions are added to; absent: 0
//	locks/RESOURCE    while it is held: the owner
//	lines/RESOURCE/…  one for each process that waits, ordered by create revision; a zero byte ends the name
type store struct {
	client    *clientv3.Client
	prefix    string
	grants    *grants
	revisions revisions
	base      atomic.Pointer[base]
	takes     groups.Groups[*attempt]
	changes   groups.Groups[*change]
	env       leases.Env
	end       context.CancelFunc
}

var _ leases.Store = (*store)(nil)

func newStore(client *clientv3.Client, prefix string) *store {
	s := &store{client: client, prefix: prefix}
	ctx, end := context.WithCancel(context.Background())
	s.end = end
	s.grants = &grants{client: client, ctx: ctx}
	s.takes = groups.Groups[*attempt]{
		Settle: s.takeGroup, Key: func(a *attempt) string { return a.r.Resource }, Timeout: groupTimeout, Pace: groups.Pace,
	}
	s.changes = groups.Groups[*change]{
		Settle: s.changeGroup, Key: func(c *change) string { return c.ref.Resource }, Timeout: groupTimeout, Pace: groups.Pace,
	}
	return s
}

// Close waits for the requests that are in flight.
func (s *store) Close() error {
	s.end()
	s.grants.flying.Wait()
	return nil
}

func (s *store) baseKey() string             { return s.prefix + "/base" }
func (s *store) lock(resource string) string { return s.prefix + "/locks/" + resource }
func (s *store) line(resource string) string { return s.prefix + "/lines/" + resource + "\x00/" }

// do sends one transaction.
func (s *store) do(ctx context.Context, op clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	answer, err := s.client.Do(clientv3.WithRequireLeader(ctx), op)
	if err != nil {
		return nil, explain(ctx, s.client, err)
	}
	return answer.Txn(), nil
}

// base is what create revisions are added to.
type base struct {
	value fence.Token
	text  string // the value in etcd; "": absent
}

// unchanged is the condition that the base in etcd is still this one.
func (b *base) unchanged(key string) clientv3.Cmp {
	if b.text == "" {
		return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	}
	return clientv3.Compare(clientv3.Value(key), "=", b.text)
}

// setBase stores the base from etcd's answer.
func (s *store) setBase(answer *clientv3.GetResponse) (*base, error) {
	b := &base{}
	if len(answer.Kvs) > 0 {
		b.text = string(answer.Kvs[0].Value)
		var err error
		if b.value, err = leases.ParseBase("the key "+s.baseKey(), b.text); err != nil {
			return nil, err
		}
	}
	s.base.Store(b)
	return b, nil
}

// readBase returns the base. It asks etcd if the base is unknown or fresh is set.
func (s *store) readBase(ctx context.Context, fresh bool) (*base, error) {
	if b := s.base.Load(); b != nil && !fresh {
		return b, nil
	}
	answer, err := s.do(ctx, clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet(s.baseKey())}, nil))
	if err != nil {
		return nil, err
	}
	return s.setBase((*clientv3.GetResponse)(answer.Responses[0].GetResponseRange()))
}

// Raise raises the base so that every later token exceeds above.
func (s *store) Raise(ctx context.Context, above fence.Token) error {
	doing := fmt.Sprintf("raise the base of tokens above %d", above)
	if err := leases.ValidateBase("etcd", above); err != nil {
		return err
	}
	for {
		b, err := s.readBase(ctx, true)
		if err != nil {
			return failure(ctx, doing, err)
		}
		if b.value >= above {
			return nil
		}
		text := strconv.FormatInt(int64(above), 10)
		answer, err := s.do(ctx, clientv3.OpTxn([]clientv3.Cmp{b.unchanged(s.baseKey())}, []clientv3.Op{clientv3.OpPut(s.baseKey(), text)}, nil))
		if err != nil {
			return failure(ctx, doing, err)
		}
		if answer.Succeeded {
			s.base.Store(&base{value: above, text: text})
			return nil
		}
	}
}

// Inspect reports who holds each resource, one after the other: etcd's transactions are small.
func (s *store) Inspect(ctx context.Context, resources []string) ([]leasing.Inspection, error) {
	all := make([]leasing.Inspection, len(resources))
	for i, resource := range resources {
		var err error
		if all[i], err = s.inspect(ctx, resource); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s *store) inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	ins := leasing.Inspection{Resource: resource}
	doing := fmt.Sprintf("inspect %q", resource)
	answer, err := s.do(ctx, clientv3.OpTxn(nil, []clientv3.Op{
		clientv3.OpGet(s.lock(resource)), clientv3.OpGet(s.line(resource), clientv3.WithPrefix(), clientv3.WithCountOnly()),
	}, nil))
	if err != nil {
		return ins, failure(ctx, doing, err)
	}
	ins.Waiters = int(answer.Responses[1].GetResponseRange().Count)
	locks := answer.Responses[0].GetResponseRange().Kvs
	if len(locks) == 0 {
		return ins, nil
	}
	held := locks[0]
	ins.Locked, ins.Owner = true, string(held.Value)
	if o, ok := leases.ParseOwner(ins.Owner); ok {
		ins.Holder, ins.Token = o.Holder, o.Base+fence.Token(held.CreateRevision)
	}
	ins.TTL, err = s.left(ctx, clientv3.LeaseID(held.Lease))
	return ins, failure(ctx, doing, err)
}

// left returns how long a lease lives, without the time that etcd's lease lives longer.
func (s *store) left(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	if id == clientv3.NoLease {
		return -1, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	answer, err := s.client.TimeToLive(ctx, id)
	if err != nil {
		return 0, explain(ctx, s.client, err)
	}
	return max(time.Duration(answer.TTL)*time.Second-ahead, time.Millisecond), nil
}

// Ready reads the base, and has etcd grant a lease unless a recent one exists.
func (s *store) Ready(ctx context.Context) error {
	const doing = "leases of etcd"
	if _, err := s.grants.get(ctx, placeTTL); err != nil {
		return failure(ctx, doing, err)
	}
	_, err := s.readBase(ctx, true)
	return failure(ctx, doing, err)
}

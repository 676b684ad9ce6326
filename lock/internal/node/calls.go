package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// InQuarantine is the remaining time of the node's quarantine; 0: none.
func (n *Node) InQuarantine(ctx context.Context) (time.Duration, error) {
	left, err := n.client.PTTL(ctx, n.keys.Q).Result()
	switch {
	case err != nil:
		return 0, ServerError(err)
	case left == 0: // its last millisecond; a key that does not exist is negative
		return time.Millisecond, nil
	}
	return max(0, left), nil
}

// AdmitBegin runs admit_begin.lua and loads the bound scripts in one MULTI/EXEC, so that a restart can't come
// between. One of them ends the admission: a node that restarts in between has lost it, whatever it keeps of its
// data. The other scripts do nothing before that end. They are not loaded again there, so the end may be repeated.
// first is the longest TTL that a first start grants, otherwise 0.
func (n *Node) AdmitBegin(ctx context.Context, nonce string, quarantine, first time.Duration, st State) error {
	void := ""
	if st.Void || n.Server.BestEffort {
		void = st.Pending
	}
	var result *redis.Cmd
	_, err := n.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		result = tx.Eval(ctx, admitBeginText, []string{n.keys.H, n.keys.Q}, nonce, n.quarantineMS(quarantine), st.Incarnation, void, first.Milliseconds())
		for _, text := range boundTexts {
			tx.ScriptLoad(ctx, bindText(*text, nonce))
		}
		return nil
	})
	if err != nil {
		return ServerError(err)
	}
	values, err := result.Slice()
	if err != nil {
		return ServerError(err)
	}
	switch integer(values, 0) {
	case 1:
		return nil
	case 2:
		return &QuarantineError{Node: n.Name, Left: time.Duration(integer(values, 1)) * time.Millisecond}
	}
	return ErrRace
}

// Admit runs admit.lua.
func (n *Node) Admit(ctx context.Context, nonce string, base int64, group Limits, stored bool) error {
	store := ""
	if stored {
		store = "stored"
	}
	values, err := n.client.EvalSha(ctx, Bind(nonce).sha[admitKind], []string{n.keys.H, n.keys.Q},
		strconv.FormatInt(base, 10), group.Granted.Milliseconds(), group.Longest.Milliseconds(), store, n.durableMark(ctx)).Slice()
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return ErrRestarted
	case err != nil:
		return ServerError(err)
	}
	switch integer(values, 0) {
	case 1:
		return nil
	case 2:
		return &QuarantineError{Node: n.Name, Left: time.Duration(integer(values, 1)) * time.Millisecond}
	case 3:
		return ErrStaleBase
	}
	return ErrRace
}

// UnderWay reads a node's current admission and the original length of its quarantine; 0: it has none, or a shortened
// one.
func (n *Node) UnderWay(ctx context.Context) (nonce string, whole time.Duration, err error) {
	var pending, quarantine *redis.StringCmd
	_, err = n.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		pending = tx.HGet(ctx, n.keys.H, "@pending")
		quarantine = tx.Get(ctx, n.keys.Q)
		return nil
	})
	switch {
	case errors.Is(err, redis.Nil): // one of them is missing
		return "", 0, nil
	case err != nil:
		return "", 0, ServerError(err)
	}
	text, found := strings.CutPrefix(quarantine.Val(), pending.Val()+":")
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || !found || ms <= 0 { // a shortened one has ":shortened:"
		return pending.Val(), 0, nil
	}
	return pending.Val(), time.Duration(ms) * time.Millisecond, nil
}

var reignScript = redis.NewScript(reignText)

// NoteReign runs reign.lua: the reign of the node's incarnation goes on under the replication ID that the server has now.
func (n *Node) NoteReign(ctx context.Context, st State) error {
	return reignScript.Run(ctx, n.client, []string{n.keys.H}, st.Incarnation, st.Reign, st.Said.Reign()).Err()
}

// ForgetIncarnation deletes the incarnation of a node that has no memory for another one.
func (n *Node) ForgetIncarnation(ctx context.Context) error {
	return n.client.HDel(ctx, n.keys.H, "@incarnation", "@pending", "@durable").Err()
}

// ErrOtherChange: the limits can't be changed now.
var ErrOtherChange = errors.New("the node was lost, or another change of the longest TTL has begun: repeat it")

var limitScript = redis.NewScript(limitText)

// LoadBound loads the scripts that are bound to an incarnation, outside of an admission.
func (n *Node) LoadBound(ctx context.Context, nonce string) error {
	for _, text := range boundTexts {
		if err := n.client.ScriptLoad(ctx, bindText(*text, nonce)).Err(); err != nil {
			return err
		}
	}
	return nil
}

// Limit runs limit.lua: it begins or ends a change of the longest TTL.
func (n *Node) Limit(ctx context.Context, incarnation, change, step string, ttl time.Duration) error {
	done, err := limitScript.Run(ctx, n.client, []string{n.keys.H}, incarnation, change, step, ttl.Milliseconds()).Slice()
	switch {
	case err != nil:
		return ServerError(err)
	case integer(done, 0) != 1:
		return ErrOtherChange
	}
	return nil
}

// Counter is a resource's counter on the node; 0: it has none, or it is not known.
func (n *Node) Counter(ctx context.Context, resource string) int64 {
	text, _ := n.client.HGet(ctx, n.keys.H, counterField(resource)).Result()
	return number(text)
}

// Give runs give.lua: it copies locks to a node that is about to be admitted.
func (n *Node) Give(ctx context.Context, nonce string, locks []HeldLock) error {
	names := []string{n.keys.H}
	args := make([]any, 0, 2*len(locks))
	for _, held := range locks {
		names = append(names, held.Key)
		args = append(args, held.Value, held.Left.Milliseconds())
	}
	code, err := n.boundCall(ctx, nonce, giveKind, names, args...)
	if err == nil && code < 0 {
		err = ErrRace
	}
	return err
}

// TakeBack deletes a lock that was given, as a release does.
func (n *Node) TakeBack(ctx context.Context, nonce string, one HeldLock) error {
	resource := strings.TrimPrefix(one.Key, n.keys.lockPrefix)
	names := []string{n.keys.H, one.Key, n.keys.waitPrefix + resource, n.keys.waiting}
	_, err := n.boundCall(ctx, nonce, OpRelease, names, one.Value[:OwnerLength], resource, n.keys.WakePrefix)
	return err
}

// Promise runs epoch.lua: the node promises an epoch, and answers the highest that it was promised; negative: it is not
// admitted.
func (n *Node) Promise(ctx context.Context, incarnation string, epoch int64) (int64, error) {
	return n.boundCall(ctx, incarnation, epochKind, []string{n.keys.H}, epoch)
}

// Why a step of an admission fails.
var (
	ErrRace      = errors.New("another admission of the node has begun")
	ErrRestarted = errors.New("the node has lost its run or its data since the admission began")
	ErrStaleBase = errors.New("the node has a higher epoch already")
)

// quarantineMS is the quarantine as an argument of admit_begin.lua.
func (n *Node) quarantineMS(quarantine time.Duration) int64 {
	if n.Server.BestEffort {
		return -1
	}
	return quarantine.Milliseconds()
}

// HeldLock is a lock on a node: its key, its value, and its time to live; negative: it never ends.
type HeldLock struct {
	Key, Value string
	Left       time.Duration
}

// Locks reads all locks of an admitted node, page by page. Each page proves that the run is the same.
func (n *Node) Locks(ctx context.Context) ([]HeldLock, error) {
	st := n.State(ctx)
	if st.Err != nil || !st.Admitted {
		return nil, errors.Join(st.Err, ErrQuarantined)
	}
	name := Bind(st.Incarnation).sha[locksKind]
	var locks []HeldLock
	for cursor := "0"; ; {
		page, err := n.client.EvalSha(ctx, name, []string{n.keys.H}, cursor, globQuote(n.keys.lockPrefix)+"*").Slice()
		if err != nil {
			return nil, ServerError(err)
		}
		next, ok := page[0].(string)
		if !ok || len(page)%3 != 1 {
			return nil, ErrQuarantined
		}
		for i := 1; i < len(page); i += 3 {
			key, _ := page[i].(string)
			value, _ := page[i+1].(string)
			locks = append(locks, HeldLock{key, value, time.Duration(integer(page, i+2)) * time.Millisecond})
		}
		if cursor = next; cursor == "0" {
			return locks, nil
		}
	}
}

// Shorten runs shorten.lua.
func (n *Node) Shorten(ctx context.Context, nonce string, quarantine, left time.Duration) error {
	mark := fmt.Sprintf("%s:%d", nonce, quarantine.Milliseconds())
	_, err := n.boundCall(ctx, nonce, shortenKind, []string{n.keys.H, n.keys.Q}, mark, left.Milliseconds())
	return err
}

// boundCall calls a script of an incarnation, and returns its first number. If the node was restarted since, the
// error is [errRestarted].
func (n *Node) boundCall(ctx context.Context, nonce string, kind Kind, names []string, args ...any) (int64, error) {
	values, err := n.client.EvalSha(ctx, Bind(nonce).sha[kind], names, args...).Slice()
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return 0, ErrRestarted
	case err != nil:
		return 0, ServerError(err)
	}
	return integer(values, 0), nil
}

var (
	raiseScript = redis.NewScript(raiseText)
	sweepScript = redis.NewScript(sweepText)
)

// Unlimited has pages look at all counters.
const Unlimited = math.MaxInt64

// Counted is what pages found.
type Counted struct {
	Top     int64 // the highest counter up to the limit
	Ahead   int   // counters above it that a new epoch may reach
	deleted int
}

// CountPages goes through a node's counters page by page, on the node itself: no page blocks it for long, and no counter
// is transferred.
func (n *Node) CountPages(ctx context.Context, what string, limit int64) (all Counted, err error) {
	for cursor := "0"; ; {
		values, err := sweepScript.Run(ctx, n.client, []string{n.keys.H}, cursor, what, limit).Slice()
		if err != nil {
			return all, err
		}
		if len(values) != 4 {
			return all, errMalformed
		}
		highest, _ := values[1].(string)
		all.Top = max(all.Top, number(highest))
		all.deleted += int(integer(values, 2))
		all.Ahead += int(integer(values, 3))
		if cursor, _ = values[0].(string); cursor == "0" || cursor == "" {
			return all, nil
		}
	}
}

func (n *Node) Sweep(ctx context.Context, incarnation string, base int64) (int, error) {
	if err := n.Raise(ctx, incarnation, base); err != nil {
		return 0, err
	}
	all, err := n.CountPages(ctx, "delete", Unlimited)
	return all.deleted, err
}

// Raise runs raise.lua.
func (n *Node) Raise(ctx context.Context, incarnation string, base int64) error {
	raised, err := raiseScript.Run(ctx, n.client, []string{n.keys.H}, incarnation, strconv.FormatInt(base, 10)).Slice()
	if err == nil && integer(raised, 0) != 1 {
		err = ErrQuarantined
	}
	return err
}

// Lock is one node's view of a resource. A TTL of -1 is a leak: the lock never expires. Waiters are the Lockers
// in the queue on this node: the resource's home keeps it, or the next node while that is down.
type Lock struct {
	leasing.Member

	Owner string
}

// Inspect is one node's view of each resource, at one moment.
func (n *Node) Inspect(ctx context.Context, resources []string) []Lock {
	ctx, cancel := context.WithTimeout(ctx, StallTimeout)
	defer cancel()
	found := make([]Lock, len(resources))
	values, ttls := make([]*redis.StringCmd, len(resources)), make([]*redis.DurationCmd, len(resources))
	waiters := make([]*redis.IntCmd, len(resources))
	fields := make([]string, len(resources))
	var counters *redis.SliceCmd
	_, err := n.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for i, resource := range resources {
			values[i] = p.Get(ctx, n.keys.Lock(resource))
			ttls[i] = p.PTTL(ctx, n.keys.Lock(resource))
			waiters[i] = p.ZCard(ctx, n.keys.waitPrefix+resource)
			fields[i] = counterField(resource)
		}
		if len(fields) > 0 {
			counters = p.HMGet(ctx, n.keys.H, fields...)
		}
		return nil
	})
	for i := range found {
		nl := Lock{Member: leasing.Member{Name: n.Name}}
		// The pipeline returns the first error: a lock that is free hides what follows.
		failed := cmp.Or(failure(err), failure(values[i].Err()), ttls[i].Err(), waiters[i].Err(), counters.Err())
		switch {
		case failed == nil && len(counters.Val()) != len(fields):
			nl.Err = ServerError(errMalformed)
		case failed != nil:
			nl.Err = ServerError(failed)
		case ttls[i].Val() == -2*time.Nanosecond: // go-redis' value for a missing key
		default:
			nl.read(values[i].Val(), ttls[i].Val())
		}
		if nl.Err == nil {
			nl.Waiters = int(waiters[i].Val())
			if text, ok := counters.Val()[i].(string); ok {
				nl.Token = fence.Token(number(text))
			}
		}
		found[i] = nl
	}
	return found
}

// failure is err, unless it says that a key does not exist.
func failure(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// read parses the value and the TTL of a lock's key.
func (nl *Lock) read(value string, ttl time.Duration) {
	if len(value) >= OwnerLength {
		nl.Locked = true
		nl.Owner, nl.Holder = value[:OwnerLength], value[OwnerLength:]
		nl.TTL = ttl
	}
}

// Leak is a lock that never expires. This package leaves none, but a PERSIST, a restore or a foreign script can.
type Leak struct {
	Node     string
	Resource string
	Holder   string
}

func (n *Node) Leaks(ctx context.Context) ([]Leak, error) {
	var leaks []Leak
	for cursor := uint64(0); ; {
		page, next, err := n.client.Scan(ctx, cursor, globQuote(n.keys.lockPrefix)+"*", 1000).Result()
		if err != nil {
			return leaks, ServerError(err)
		}
		values := make([]*redis.StringCmd, len(page))
		ttls := make([]*redis.DurationCmd, len(page))
		if len(page) > 0 {
			_, err = n.client.Pipelined(ctx, func(p redis.Pipeliner) error {
				for i, key := range page {
					values[i], ttls[i] = p.Get(ctx, key), p.PTTL(ctx, key)
				}
				return nil
			})
			if err != nil && !errors.Is(err, redis.Nil) {
				return leaks, ServerError(err)
			}
		}
		for i, key := range page {
			if value := values[i].Val(); ttls[i].Val() == -1 && value != "" {
				leaks = append(leaks, Leak{
					Node:     n.Name,
					Resource: strings.TrimPrefix(key, n.keys.lockPrefix),
					Holder:   value[min(OwnerLength, len(value)):],
				})
			}
		}
		if cursor = next; cursor == 0 {
			return leaks, nil
		}
	}
}

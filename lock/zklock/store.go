package zklock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

// store keeps the leases in ZooKeeper. Below the prefix are
//
//	base            what czxids are added to
//	r:RESOURCE      the owner of its last lease; each lease raises its version
//	  NONCE.…       ephemeral: the lease of the owner with this nonce lives. Its data is the deadline, for people
//	  wait.…        ephemeral, sequential: one for each process that waits
//
// A resource's node is never removed: its version would restart, and a change could go unnoticed.
type store struct {
	session *session
	prefix  string
	logger  *slog.Logger
	base    atomic.Pointer[base]
	env     leases.Env

	mu    sync.Mutex
	holds map[string]*hold // by owner
}

var _ leases.Store = (*store)(nil)

// base is what czxids are added to.
type base struct {
	value   fence.Token
	version int32
}

func (s *store) baseNode() string { return s.prefix + "/base" }

func (s *store) node(resource string) string { return s.prefix + "/r:" + url.PathEscape(resource) }

// Close ends the session. If leases are held it only stops sending, and they live as long as the session does.
func (s *store) Close() error {
	s.mu.Lock()
	held := 0
	for _, h := range s.holds {
		h.timer.Stop()
		if !h.unused && !h.deadline.Passed() {
			held++
		}
	}
	s.mu.Unlock()
	s.session.close(held > 0)
	return nil
}

// make creates nodes that are absent.
func (s *store) make(ctx context.Context, nodes ...string) error {
	for _, node := range nodes {
		data := []byte(nil)
		if node == s.baseNode() {
			data = []byte("0")
		}
		_, err := call(ctx, s.session, func(c *zk.Conn) (string, error) { return c.Create(node, data, 0, s.session.acl) })
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return nil
}

type read struct {
	data []byte
	stat *zk.Stat
}

// get reads a node below the prefix, and creates it if it is absent.
func (s *store) get(ctx context.Context, node string) (read, error) {
	for try := 0; ; try++ {
		r, err := call(ctx, s.session, func(c *zk.Conn) (read, error) {
			data, stat, err := c.Get(node)
			return read{data, stat}, err
		})
		if !errors.Is(err, zk.ErrNoNode) || try > 0 {
			return r, err
		}
		if err := s.make(ctx, s.prefix, node); err != nil {
			return r, err
		}
	}
}

// readBase returns the base. It asks ZooKeeper if the base is unknown or fresh is set.
func (s *store) readBase(ctx context.Context, fresh bool) (*base, error) {
	if b := s.base.Load(); b != nil && !fresh {
		return b, nil
	}
	r, err := s.get(ctx, s.baseNode())
	if err != nil {
		return nil, err
	}
	value, err := leases.ParseBase("the node "+s.baseNode(), string(r.data))
	if err != nil {
		return nil, err
	}
	b := &base{value: value, version: r.stat.Version}
	s.base.Store(b)
	return b, nil
}

// Raise raises the base so that every later token exceeds above.
func (s *store) Raise(ctx context.Context, above fence.Token) error {
	doing := fmt.Sprintf("raise the base of tokens above %d", above)
	if err := leases.ValidateBase("ZooKeeper", above); err != nil {
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
		_, err = call(ctx, s.session, func(c *zk.Conn) (*zk.Stat, error) {
			return c.Set(s.baseNode(), []byte(strconv.FormatInt(int64(above), 10)), b.version)
		})
		if err != nil && !errors.Is(err, zk.ErrBadVersion) {
			return failure(ctx, doing, err)
		}
	}
}

// snapshot is what ZooKeeper reports about a resource.
type snapshot struct {
	owner   leases.Owner
	text    string // the owner, unparsed
	version int32
	changed int64    // the zxid of the last lease
	lease   string   // the name of the lease's child; "": the lease is over
	waiting []string // children of the waiters
}

// look reads a resource's node, and then its children: a lease whose child is gone by then is over.
func (s *store) look(ctx context.Context, resource string) (*snapshot, error) {
	node := s.node(resource)
	r, err := s.get(ctx, node)
	if err != nil {
		return nil, err
	}
	children, err := call(ctx, s.session, func(c *zk.Conn) ([]string, error) {
		names, _, err := c.Children(node)
		return names, err
	})
	if err != nil {
		return nil, err
	}
	at := &snapshot{text: string(r.data), version: r.stat.Version, changed: r.stat.Mzxid}
	at.owner, _ = leases.ParseOwner(at.text)
	for _, name := range children {
		switch {
		case strings.HasPrefix(name, waitPrefix):
			at.waiting = append(at.waiting, name)
		case at.owner.Nonce != "" && strings.HasPrefix(name, at.owner.Nonce+"."):
			at.lease = name
		}
	}
	return at, nil
}

// sync makes the server catch up with the leader: it may lag behind what another process was answered.
func (s *store) sync(ctx context.Context, resource string) error {
	_, err := call(ctx, s.session, func(c *zk.Conn) (string, error) { return c.Sync(s.node(resource)) })
	return err
}

// find looks for an owner's lease, and calls do with it. If there is no such lease, or do's node is gone, the server
// may lag behind: find syncs and looks once more before it reports the lease lost.
func (s *store) find(ctx context.Context, ref leasing.Ref, do func(at *snapshot) error) error {
	for try := 1; ; try++ {
		at, err := s.look(ctx, ref.Resource)
		if err != nil {
			return err
		}
		found := at.text == ref.Owner && at.lease != ""
		if found {
			if err := do(at); !errors.Is(err, zk.ErrNoNode) {
				return err
			}
		}
		if try > 1 && !found || try == takeTries {
			return leasing.ErrLost
		}
		if err := s.sync(ctx, ref.Resource); err != nil {
			return err
		}
	}
}

// left returns how long a lease lives by its holder's clock, as a hint.
func (s *store) left(ctx context.Context, child string) time.Duration {
	r, err := call(ctx, s.session, func(c *zk.Conn) (read, error) {
		data, stat, err := c.Get(child)
		return read{data, stat}, err
	})
	if err != nil {
		return time.Millisecond // it has ended, or the caller asks again
	}
	ms, _ := strconv.ParseInt(string(r.data), 10, 64)
	return min(max(time.Until(time.UnixMilli(ms)), time.Millisecond), s.session.wanted)
}

// until is a deadline by the wall clock.
func until(deadline clock.Instant) []byte {
	return []byte(strconv.FormatInt(time.Now().Add(deadline.Left()).UnixMilli(), 10))
}

// Inspect reports who holds each resource, one after the other.
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
	at, err := s.look(ctx, resource)
	if err != nil {
		return ins, failure(ctx, fmt.Sprintf("inspect %q", resource), err)
	}
	ins.Waiters = len(at.waiting)
	if at.owner.Nonce != "" {
		ins.Token = at.owner.Base + fence.Token(at.changed)
	}
	if at.lease != "" {
		ins.Locked, ins.Owner, ins.Holder = true, at.text, at.owner.Holder
		ins.TTL = s.left(ctx, path.Join(s.node(resource), at.lease))
	}
	return ins, nil
}

// Ready makes a write, because a server can answer reads without a quorum.
func (s *store) Ready(ctx context.Context) error {
	b, err := s.readBase(ctx, true)
	if err == nil {
		_, err = call(ctx, s.session, func(c *zk.Conn) ([]zk.MultiResponse, error) {
			return c.Multi(&zk.CheckVersionRequest{Path: s.baseNode(), Version: b.version})
		})
	}
	if errors.Is(err, zk.ErrBadVersion) {
		err = nil // another process has raised the base
	}
	return failure(ctx, "leases of ZooKeeper", err)
}

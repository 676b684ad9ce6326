package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencegate/fencegate/internal/leases"
)

// session is a session with the ensemble. The client keeps it alive, and starts another when it has expired.
type session struct {
	conn    *zk.Conn
	servers []string
	wanted  time.Duration
	allowed atomic.Int64 // the session timeout that a server granted, in milliseconds; 0: unknown
	acl     []zk.ACL
	known   chan struct{}   // closed when a server has accepted the digest; calls wait for it
	ctx     context.Context // ends with the session
	end     context.CancelFunc
	login   sync.WaitGroup

	mu  sync.Mutex
	cut bool // nothing more is sent
	on  net.Conn
}

func open(servers []string, timeout time.Duration, digest string) (*session, error) {
	s := &session{servers: servers, wanted: timeout, acl: zk.WorldACL(zk.PermAll), known: make(chan struct{})}
	conn, _, err := zk.Connect(servers, timeout, zk.WithDialer(s.dial), zk.WithLogInfo(false), zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	s.conn = conn
	s.ctx, s.end = context.WithCancel(context.Background())
	if digest == "" {
		close(s.known)
		return s, nil
	}
	user, password, _ := strings.Cut(digest, ":")
	s.acl = zk.DigestACL(zk.PermAll, user, password)
	s.login.Go(func() { s.authenticate(digest) })
	return s, nil
}

// authenticate sends the digest until a server has accepted it. The client repeats an accepted digest on each later
// connection, but forgets one that was in flight when its connection broke.
func (s *session) authenticate(digest string) {
	for s.ctx.Err() == nil {
		if s.conn.AddAuth("digest", []byte(digest)) == nil { // AddAuth waits for a connection
			close(s.known)
			return
		}
		leases.Pause(s.ctx, takePause)
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func (s *session) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, timeout)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		return nil, errors.Join(errors.New("closed"), conn.Close())
	}
	s.on = conn
	return &greeted{Conn: conn, s: s}, nil
}

// greeted reads the granted session timeout from a server's greeting. The client does not report it.
type greeted struct {
	net.Conn
	s    *session
	head []byte
}

func (g *greeted) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	const upTo = 12 // length, protocol, time-out
	if missing := upTo - len(g.head); missing > 0 {
		if g.head = append(g.head, p[:min(n, missing)]...); len(g.head) == upTo {
			g.s.allowed.Store(int64(binary.BigEndian.Uint32(g.head[8:])))
		}
	}
	return n, err
}

// short returns an error if the servers' session timeout is shorter than the leases need.
func (s *session) short() error {
	allowed := time.Duration(s.allowed.Load()) * time.Millisecond
	if allowed > 0 && allowed < s.wanted {
		return fmt.Errorf("the server allows sessions of %v, but leases need %v: raise maxSessionTimeout, or lower MaxTTL", allowed, s.wanted)
	}
	return nil
}

// close ends the session. If silently is set, it only stops sending, so that held leases stay.
func (s *session) close(silently bool) {
	if silently {
		s.mu.Lock()
		s.cut = true
		if s.on != nil {
			_ = s.on.Close()
		}
		s.mu.Unlock()
	}
	s.end()
	s.conn.Close()
	s.login.Wait()
}

func (s *session) connection() net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on
}

// leave makes the client reconnect to the next server after a call got no answer from this one. By itself the client
// does so only after two thirds of the session timeout. The session goes on.
func (s *session) leave(on net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on != nil && s.on == on {
		_ = on.Close()
	}
}

// States of a call.
const (
	callWaits int32 = iota
	callSent
	callAbandoned
)

// unsentError says that a call was abandoned before anything was sent, so nothing was done.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

func isUnsent(err error) bool {
	_, ok := errors.AsType[*unsentError](err)
	return ok
}

// call makes one call of the client, which takes no context. If ctx ends before the call is sent, it is never sent, and
// the error is an [*unsentError]. If ctx ends later, the call goes on in the background until it is answered, or its
// connection ends.
func call[T any](ctx context.Context, s *session, f func(*zk.Conn) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	on := s.connection()
	var state atomic.Int32
	go func() {
		select {
		case <-s.known:
		case <-ctx.Done():
		}
		if ctx.Err() != nil || !state.CompareAndSwap(callWaits, callSent) {
			return
		}
		value, err := f(s.conn)
		done <- outcome{value, err}
	}()
	select {
	case o := <-done:
		switch {
		case o.err == nil:
			o.err = s.short()
		case errors.Is(o.err, zk.ErrNoServer):
			o.err = fmt.Errorf("%w: %s", o.err, strings.Join(s.servers, ", "))
		}
		return o.value, o.err
	case <-ctx.Done():
		var none T
		err := context.Cause(ctx)
		if errors.Is(err, errNoAnswer) {
			s.leave(on)
		}
		if errors.Is(err, errNoAnswer) && s.conn.State() != zk.StateHasSession {
			err = fmt.Errorf("%w: no connection to %s", errNoAnswer, strings.Join(s.servers, ", "))
		}
		if state.CompareAndSwap(callWaits, callAbandoned) {
			err = &unsentError{err}
		}
		return none, err
	}
}

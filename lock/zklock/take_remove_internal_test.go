package zklock

import (
	"context"
	"errors"
	"path"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/zkserver"
)

// ownStore is the store of a Source over a server of its own.
func ownStore(t *testing.T) *store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	e, err := zkserver.Start(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Servers: e.Addrs(), MaxTTL: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), e.Close()); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s.store
}

// The client may send an acquisition after the deletion that gives it up has found nothing. So the deletion goes on until
// the acquisition's call has ended.
func TestAnAcquisitionThatIsSentAfterItsDeletionLeavesNothing(t *testing.T) {
	t.Parallel()
	s := ownStore(t)
	node := s.node("r")
	at, err := s.look(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	h := s.keep("owner", path.Join(node, "late.0"), s.env.Clock.Now().Add(2*time.Minute))
	once, cancel := context.WithTimeout(t.Context(), time.Second) // its first look comes at once
	defer cancel()
	s.remove(once, h)
	if s.own(h.owner) != h {
		t.Error("the deletion has ended before the call that creates the node")
	}
	_, err = s.request(t.Context(), h,
		&zk.CheckVersionRequest{Path: node, Version: at.version}, &zk.CreateRequest{Path: h.child, Acl: s.session.acl, Flags: zk.FlagEphemeral})
	if err != nil {
		t.Fatal(err)
	}
	gone := func(why string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s.remove(ctx, h)
		if err := s.delete(t.Context(), h.child); !errors.Is(err, zk.ErrNoNode) || ctx.Err() != nil || s.own(h.owner) != nil {
			t.Errorf("%s: %v, %v; the deletion goes on: %t", why, err, ctx.Err(), s.own(h.owner) != nil)
		}
	}
	gone("a node that was created late")
	h = s.keep(h.owner, h.child, h.deadline)
	if _, err := s.request(t.Context(), h, &zk.CheckVersionRequest{Path: node, Version: at.version + 1}); !errors.Is(err, zk.ErrBadVersion) {
		t.Fatal(err)
	}
	gone("a node that was not created, after its call")
}

// Nothing is to be deleted of what was not sent.
func TestAnAcquisitionThatIsNotSentIsForgotten(t *testing.T) {
	t.Parallel()
	s := ownStore(t)
	at, err := s.look(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.readBase(t.Context(), false); err != nil { // it is not read again
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.create(ended, leasing.Request{Resource: "r", TTL: time.Minute}, at, nil); !isUnsent(err) {
		t.Errorf("%v; want that it was not sent", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.holds) > 0 {
		t.Errorf("%d attempts are being deleted", len(s.holds))
	}
}

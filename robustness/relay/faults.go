package relay

import (
	"context"
	"sync"
	"sync/atomic"
)

// gate holds back data while it is shut.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil: open; closed when the gate opens
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case shut && g.shut == nil:
		g.shut = make(chan struct{})
	case !shut && g.shut != nil:
		close(g.shut)
		g.shut = nil
	}
}

// pass waits until the gate is open; false: ctx ended.
func (g *gate) pass(ctx context.Context) bool {
	for {
		g.mu.Lock()
		held := g.shut
		g.mu.Unlock()
		if held == nil {
			return ctx.Err() == nil
		}
		select {
		case <-held:
		case <-ctx.Done():
			return false
		}
	}
}

// cutters are the armed cuts.
type cutters struct {
	messages [2]atomic.Int64 // how many messages of each direction are still to be cut
	bodies   [2]bodyCutter
}

type bodyCutter struct {
	mu    sync.Mutex
	epoch int // number of the arming, from which bytes count
	after int64
	left  int
}

// counter counts the bytes of one connection and direction since a cut was armed.
type counter struct {
	dir     Direction
	epoch   int
	carried int64
}

func (c *cutters) armBody(dir Direction, k int64, n int) {
	b := &c.bodies[dir]
	b.mu.Lock()
	defer b.mu.Unlock()
	b.epoch++
	b.after, b.left = k, n
}

func (c *cutters) disarm() {
	for dir := range c.bodies {
		c.messages[dir].Store(0)
		c.armBody(Direction(dir), 0, 0)
	}
}

func (c *cutters) pending() int {
	n := 0
	for dir := range c.bodies {
		n += int(max(0, c.messages[dir].Load()))
		b := &c.bodies[dir]
		b.mu.Lock()
		n += b.left
		b.mu.Unlock()
	}
	return n
}

// judge returns how much of a message of that size passes, and whether its connection is cut then.
func (c *cutters) judge(body *counter, size int) (pass int, cut bool) {
	messages := &c.messages[body.dir]
	for left := messages.Load(); left > 0; left = messages.Load() {
		if messages.CompareAndSwap(left, left-1) {
			return 0, true
		}
	}
	b := &c.bodies[body.dir]
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == 0 {
		return size, false
	}
	if body.epoch != b.epoch {
		body.epoch, body.carried = b.epoch, 0
	}
	room := b.after - body.carried
	body.carried += int64(size)
	if int64(size) <= room {
		return size, false
	}
	b.left--
	return int(room), true
}

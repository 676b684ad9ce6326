package api

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// LimitConnections bounds how many connections a server has open: descriptors are the process's,
// and the other ports need them too. A further one takes the place of the one on which nobody has
// asked anything for longest; where each is at work, it is closed. full is told then.
func LimitConnections(srv *http.Server, most int, full func()) {
	c := &connections{most: most, full: full, open: map[net.Conn]time.Time{}}
	srv.ConnState = c.changed
}

type connections struct {
	most int
	full func()

	mu   sync.Mutex
	open map[net.Conn]time.Time // since when nobody has asked; zero: it is at work
}

// changed is [http.Server.ConnState]. It is called for a new connection before the next is accepted.
func (c *connections) changed(conn net.Conn, now http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.open[conn]
	switch {
	case now == http.StateNew:
		if len(c.open) < c.most || c.makeRoom() {
			c.open[conn] = time.Now()
			return
		}
		cut(conn)
		c.full()
	case now == http.StateClosed, now == http.StateHijacked:
		delete(c.open, conn)
	case known && now == http.StateActive:
		c.open[conn] = time.Time{}
	case known && now == http.StateIdle:
		c.open[conn] = time.Now()
	}
}

func (c *connections) makeRoom() bool {
	var quiet net.Conn
	var since time.Time
	for conn, at := range c.open {
		if !at.IsZero() && (quiet == nil || at.Before(since)) {
			quiet, since = conn, at
		}
	}
	if quiet == nil {
		return false
	}
	cut(quiet)
	delete(c.open, quiet)
	return true
}

// cut ends a connection without TLS's farewell, for which it could have to wait.
func cut(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close() // its server sees it
}

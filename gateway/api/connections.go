package api

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// LimitConnections bounds the open connections of a server: file descriptors belong to the process, and the other ports
// need them, too. A further connection replaces the one that has been idle longest. If all are active, it is closed and
// full is called.
func LimitConnections(srv *http.Server, most int, full func()) {
	c := &connections{most: most, full: full, open: map[net.Conn]time.Time{}}
	srv.ConnState = c.changed
}

type connections struct {
	most int
	full func()

	mu   sync.Mutex
	open map[net.Conn]time.Time // idle since; zero: active
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

// cut closes a connection without the TLS close alert, which could block.
func cut(conn net.Conn) {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok { // a server's connection embeds a tls.Conn
		conn = secure.NetConn()
	}
	_ = conn.Close() // the server notices
}

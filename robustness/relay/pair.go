package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// pair is a client's connection and the one to the server.
type pair struct {
	client, server net.Conn
	cancel         context.CancelFunc
}

// dialPatience bounds how long a connection to a server takes.
const dialPatience = 5 * time.Second

// reset closes both ends, so that each side sees an error and not an end in order.
func (p *pair) reset() {
	p.cancel()
	reset(p.client)
	if p.server != nil {
		reset(p.server)
	}
}

func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // best effort: a close without it is an end too
	}
	_ = conn.Close()
}

func (r *Relay) carry(client net.Conn) {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	p := &pair{client: client, cancel: cancel}
	r.add(p)
	defer r.remove(p)
	if !r.absorb.pass(ctx) || !r.ways[Requests].held.pass(ctx) {
		return
	}
	server, err := (&net.Dialer{Timeout: dialPatience}).DialContext(ctx, "tcp", r.Server())
	if err != nil {
		reset(client)
		return
	}
	if !r.complete(p, server) {
		reset(server)
		return
	}
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() { r.pump(ctx, p, client, server, Requests) })
	both.Go(func() { r.pump(ctx, p, server, client, Replies) })
	both.Wait()
}

func (r *Relay) add(p *pair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns[p] = struct{}{}
	if r.ctx.Err() != nil {
		p.reset()
	}
}

// complete notes the connection to the server; false: the pair was cut while it was dialled.
func (r *Relay) complete(p *pair, server net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, stands := r.conns[p]; !stands || r.ctx.Err() != nil {
		return false
	}
	p.server = server
	return true
}

func (r *Relay) remove(p *pair) {
	r.mu.Lock()
	delete(r.conns, p)
	r.mu.Unlock()
	_ = p.client.Close()
}

// pump carries one direction until it ends.
func (r *Relay) pump(ctx context.Context, p *pair, from, to net.Conn, dir Direction) {
	buf := make([]byte, 32<<10)
	body := counter{dir: dir}
	for {
		n, err := from.Read(buf)
		if n > 0 && !r.forward(ctx, p, to, buf[:n], &body) {
			return
		}
		if err == nil {
			continue
		}
		if !r.ways[dir].pass(ctx) { // an end is a message too
			return
		}
		if errors.Is(err, io.EOF) {
			if tcp, ok := to.(*net.TCPConn); ok && tcp.CloseWrite() == nil {
				return
			}
		}
		p.reset()
		return
	}
}

// forward carries one message, or cuts the connection instead.
func (r *Relay) forward(ctx context.Context, p *pair, to net.Conn, message []byte, body *counter) bool {
	if !r.ways[body.dir].pass(ctx) {
		return false
	}
	pass, cut := r.cutters.judge(body, len(message))
	if pass > 0 {
		if _, err := to.Write(message[:pass]); err != nil {
			p.reset()
			return false
		}
		r.carried[body.dir].Add(int64(pass))
	}
	if cut {
		p.end()
	}
	return !cut
}

// end closes in order towards who has been sent something, so that it arrives.
func (p *pair) end() {
	p.cancel()
	_ = p.client.Close()
	_ = p.server.Close()
}

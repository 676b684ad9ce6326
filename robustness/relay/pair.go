package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// pair is a client's connection and the matching one to the server.
type pair struct {
	client, server net.Conn
	cancel         context.CancelFunc
}

// dialPatience bounds dialling a server.
const dialPatience = 5 * time.Second

// reset resets both connections, so that each side gets an error instead of EOF.
func (p *pair) reset() {
	p.cancel()
	reset(p.client)
	if p.server != nil {
		reset(p.server)
	}
}

func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // best effort: a normal close also ends the connection
	}
	_ = conn.Close()
}

func (r *Relay) carry(client net.Conn) {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	p := &pair{client: client, cancel: cancel}
	r.add(p)
	defer r.remove(p)
	if !r.absorb.pass(ctx) || !r.ways[Requests].gate.pass(ctx) {
		return
	}
	dialer := net.Dialer{Timeout: dialPatience}
	if r.Source != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: r.Source}
	}
	server, err := dialer.DialContext(ctx, "tcp", r.Server())
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

// complete stores the connection to the server; false: the pair was cut during the dial.
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
		if !r.ways[dir].pass(ctx) { // EOF counts as a message
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

// end closes the side that has received data in order, so that the data arrives.
func (p *pair) end() {
	p.cancel()
	_ = p.client.Close()
	_ = p.server.Close()
}

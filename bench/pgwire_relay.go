package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/stack"
)

// startRelay runs a relay and returns when it accepts connections. At control it serves how many objects it has
// allocated.
func startRelay(ctx context.Context, s *stack.Stack, kind, upstream string) (p *child.Process, addr, control string) {
	addr, control = run.Must(stack.FreeAddr()), run.Must(stack.FreeAddr())
	p = server{Kind: kind, Addr: addr, Control: control, Upstream: upstream}.spawn(ctx, s, func(ctx context.Context) error { // it listens for clients first
		_, err := mallocsAt(ctx, control)
		return err
	})
	return p, addr, control
}

// listen listens for clients until ctx ends, and serves the number of allocations.
func (s server) listen(ctx context.Context) net.Listener {
	ln := run.Must(net.Listen("tcp", s.Addr))
	context.AfterFunc(ctx, func() { _ = ln.Close() })
	control := http.Server{Addr: s.Control, ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, mallocs())
	})}
	go func() { _ = control.ListenAndServe() }()
	return ln
}

// pgwire is our relay.
func (s server) pgwire(ctx context.Context) {
	srv := run.Must(pgwire.New(pgwire.Config{
		Addr: s.Upstream, TLS: ownTLS(), Options: pgwire.Options{MaxConnections: 20_000}, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}))
	run.Check(srv.Serve(ctx, s.listen(ctx)))
}

// mallocs is how many objects this process has allocated.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// mallocsAt is that of a relay.
func mallocsAt(ctx context.Context, control string) (n float64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+control, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = fmt.Fscan(response.Body, &n)
	return n, err
}

// ioCopy is the minimal relay in Go. Between TCP connections io.Copy splices on Linux: the bytes do not enter the
// process.
func (s server) ioCopy(ctx context.Context) {
	accept(s.listen(ctx), func(client net.Conn) {
		server, err := net.Dial("tcp", s.Upstream)
		if err != nil {
			return
		}
		defer func() { _ = server.Close() }()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(server, client)
			_ = server.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(client, server)
		_ = client.Close()
		<-ended
	})
}

// accept serves connections until the listener closes.
func accept(ln net.Listener, serve func(net.Conn)) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			serve(conn)
		}()
	}
}

// ownTLS uses a self-signed certificate.
func ownTLS() *tls.Config {
	key := run.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der := run.Must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, SessionTicketsDisabled: true}
}

// standIn replaces PostgreSQL for many sessions, and for steady exchanges: thousands of real backends would use up the
// machine. It answers each query with rows.
type standIn struct {
	net.Listener

	welcome, rows []byte
}

// The sizes of a row's message, and of those that end an answer.
const (
	rowBytes = 111
	endBytes = 22
)

// newStandIn serves answers of this many bytes, at least a row's, until the stack closes.
func newStandIn(on *stack.Stack, size int) *standIn {
	in := &standIn{Listener: run.Must(net.Listen("tcp", "127.0.0.1:0"))}
	on.AtClose(in.Close)
	for _, m := range []pgproto3.BackendMessage{&pgproto3.AuthenticationOk{}, &pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte("1234")}, &pgproto3.ReadyForQuery{TxStatus: 'I'}} {
		in.welcome, _ = m.Encode(in.welcome)
	}
	for n := range (size - endBytes) / rowBytes {
		value := 100
		if n == 0 {
			value += (size - endBytes) % rowBytes
		}
		in.rows, _ = (&pgproto3.DataRow{Values: [][]byte{bytes.Repeat([]byte{'x'}, value)}}).Encode(in.rows)
	}
	in.rows, _ = (&pgproto3.CommandComplete{CommandTag: []byte("SELECT 100")}).Encode(in.rows)
	in.rows, _ = (&pgproto3.ReadyForQuery{TxStatus: 'I'}).Encode(in.rows)
	go accept(in, in.serve)
	return in
}

func (in *standIn) serve(conn net.Conn) {
	var length [4]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return
	}
	_, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(length[:]))-4)
	if err == nil {
		_, err = conn.Write(in.welcome)
	}
	for b := make([]byte, len(query)); err == nil; {
		if _, err = io.ReadFull(conn, b); err == nil {
			_, err = conn.Write(in.rows)
		}
	}
}

var query, _ = (&pgproto3.Query{String: "SELECT 1"}).Encode(nil)

// session is a client's session with a stand-in.
type session struct {
	net.Conn

	answer []byte
}

// login opens a session and makes one exchange on it. Its reads and writes end after ten minutes.
func (in *standIn) login(addr string, encrypted bool) (*session, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Minute))
	s := &session{conn, make([]byte, max(len(in.welcome), len(in.rows)))}
	if encrypted {
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the benchmark made this certificate itself, and measures speed only
		ask, _ := (&pgproto3.SSLRequest{}).Encode(nil)
		if err = s.send(ask, 1); err == nil {
			err = secure.Handshake()
		}
		s.Conn = secure
	}
	packet, _ := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "a"}}).Encode(nil)
	if err == nil {
		if err = s.send(packet, len(in.welcome)); err == nil {
			err = s.exchange()
		}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

func (s *session) exchange() error { return s.send(query, len(s.answer)) }

// send sends a message and reads an answer of this many bytes.
func (s *session) send(message []byte, answer int) error {
	if _, err := s.Write(message); err != nil {
		return err
	}
	_, err := io.ReadFull(s.Conn, s.answer[:answer])
	return err
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/redisserver"
)

// standIn replaces PostgreSQL for idle sessions: thousands of real
// backends would use up the machine. It answers each query with rows.
type standIn struct {
	net.Listener
	welcome, rows []byte
}

func newStandIn() (*standIn, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &standIn{Listener: ln}
	for _, m := range []pgproto3.BackendMessage{&pgproto3.AuthenticationOk{}, &pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte("1234")}, &pgproto3.ReadyForQuery{TxStatus: 'I'}} {
		s.welcome, _ = m.Encode(s.welcome)
	}
	for range 100 {
		s.rows, _ = (&pgproto3.DataRow{Values: [][]byte{bytes.Repeat([]byte{'x'}, 100)}}).Encode(s.rows)
	}
	s.rows, _ = (&pgproto3.CommandComplete{CommandTag: []byte("SELECT 100")}).Encode(s.rows)
	s.rows, _ = (&pgproto3.ReadyForQuery{TxStatus: 'I'}).Encode(s.rows)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s, nil
}

func (s *standIn) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	var length [4]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return
	}
	if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(length[:]))-4); err != nil {
		return
	}
	if _, err := conn.Write(s.welcome); err != nil {
		return
	}
	b := make([]byte, len(query))
	for {
		if _, err := io.ReadFull(conn, b); err != nil {
			return
		}
		if _, err := conn.Write(s.rows); err != nil {
			return
		}
	}
}

var query = func() []byte {
	b, _ := (&pgproto3.Query{String: "SELECT 1"}).Encode(nil)
	return b
}()

// login opens a session and makes one exchange on it.
func (s *standIn) login(addr string, encrypted bool) (net.Conn, error) {
	conn, err := dial(addr, encrypted)
	if err != nil {
		return nil, err
	}
	packet, _ := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "a"}}).Encode(nil)
	if _, err = conn.Write(packet); err == nil {
		if _, err = io.ReadFull(conn, make([]byte, len(s.welcome))); err == nil {
			err = s.exchange(conn, make([]byte, len(s.rows)))
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func (s *standIn) exchange(conn net.Conn, b []byte) error {
	if _, err := conn.Write(query); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, b)
	return err
}

// withRelay runs f on a fresh relay before a stand-in.
func withRelay(kind string, f func(s *standIn, relay *child.Process, addr, control string) error) error {
	s, err := newStandIn()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	addr, err := redisserver.FreeAddr()
	if err != nil {
		return err
	}
	control, err := redisserver.FreeAddr()
	if err != nil {
		return err
	}
	relay, err := startRelay(kind, addr, control, s.Addr().String())
	if err != nil {
		return err
	}
	defer relay.Stop(3 * time.Second)
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		conn, err := s.login(addr, false)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Since(began) > 10*time.Second {
			return err
		}
	}
	return f(s, relay, addr, control)
}

// allocsPart counts the allocations of the relay's process while messages pass.
func (p plan) allocsPart(ctx context.Context) (goals []goal, err error) {
	const exchanges, messages = 20_000, 103
	err = withRelay("ours", func(s *standIn, _ *child.Process, addr, control string) error {
		conn, err := s.login(addr, false)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		b := make([]byte, len(s.rows))
		var before, after int64
		if _, err = mallocs(ctx, control); err != nil { // the first request allocates most
			return err
		}
		if before, err = mallocs(ctx, control); err != nil {
			return err
		}
		for range exchanges {
			if err = s.exchange(conn, b); err != nil {
				return err
			}
		}
		if after, err = mallocs(ctx, control); err != nil {
			return err
		}
		per := float64(after-before) / (exchanges * messages)
		fmt.Printf("allocations of the relay's process: %d in %d messages, with those of asking for the number\n", after-before, exchanges*messages)
		goals = append(goals, goal{name: "allocations", ours: fmt.Sprintf("%.5f/message", per), peer: "none", ratio: per, want: 0.001, atMost: true})
		return nil
	})
	return goals, err
}

// idlePart holds sessions that have each made one exchange.
func (p plan) idlePart(context.Context) (goals []goal, err error) {
	// Each session through io.Copy has two pipes for splicing.
	for name, sessions := range map[string]int{"iocopy": p.idle / 3, "ours": p.idle, "ours with TLS": p.idle} {
		kind, encrypted := strings.CutSuffix(name, " with TLS")
		err := withRelay(kind, func(s *standIn, relay *child.Process, addr, _ string) error {
			before, err := memory(relay.Pid(), "VmRSS:")
			if err != nil {
				return err
			}
			began := time.Now()
			conns, err := s.logins(addr, encrypted, sessions)
			defer func() {
				for _, conn := range conns {
					_ = conn.Close()
				}
			}()
			if err != nil {
				return err
			}
			took := time.Since(began)
			after, err := memory(relay.Pid(), "VmRSS:")
			if err != nil {
				return err
			}
			load, err := atRest(relay.Pid())
			if err != nil {
				return err
			}
			each := float64(after-before) / 1024 / float64(sessions)
			fmt.Printf("%d idle sessions through %s: %.1f KiB of resident memory each, %.1f ms of processor a second in all (opened in %v)\n",
				sessions, name, each, load, took.Round(time.Millisecond))
			if name == "ours" {
				goals = append(goals, goal{name: fmt.Sprintf("idle.%d", p.idle), ours: fmt.Sprintf("%.1fKiB", each), peer: "40KiB", ratio: each / 40, want: 1, atMost: true})
			}
			return s.serves(conns)
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return goals, nil
}

// atRest is an idle process's processor time in ms per second.
func atRest(pid int) (float64, error) {
	const seconds, tick = 10, 10 // ms in a tick
	before, err := ticks(pid)
	if err != nil {
		return 0, err
	}
	time.Sleep(seconds * time.Second)
	after, err := ticks(pid)
	return float64(after-before) * tick / seconds, err
}

// logins opens this many sessions, several at a time. With an error it also returns those that were opened.
func (s *standIn) logins(addr string, encrypted bool, sessions int) ([]net.Conn, error) {
	conns, failures := make([]net.Conn, sessions), make([]error, sessions)
	limit := make(chan struct{}, 64)
	var opening sync.WaitGroup
	for i := range conns {
		limit <- struct{}{}
		opening.Go(func() {
			conns[i], failures[i] = s.login(addr, encrypted)
			<-limit
		})
	}
	opening.Wait()
	return slices.DeleteFunc(conns, func(c net.Conn) bool { return c == nil }), cmp.Or(failures...)
}

// serves checks that each of the sessions still works.
func (s *standIn) serves(conns []net.Conn) error {
	b := make([]byte, len(s.rows))
	for i, conn := range conns {
		if err := s.exchange(conn, b); err != nil {
			return fmt.Errorf("session %d: %w", i, err)
		}
	}
	return nil
}

// memory is a process's memory from /proc, in bytes: VmRSS: is resident now, VmHWM: was at the most.
func memory(pid int, field string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field); ok {
			kib, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("/proc shows no " + field)
}

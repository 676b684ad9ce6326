package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

// cpuPart measures the processor time of a relay's process per exchange. It is steadier than rates on a machine that
// relay, clients and server share.
func (p plan) cpuPart(context.Context) ([]goal, error) {
	for i := range len(p.clients) * 2 * 4 {
		clients, long, kind := p.clients[i/8], i%8 >= 4, []string{"iocopy", "ours"}[i%2]
		err := withRelay(kind, func(s *standIn, relay *child.Process, addr, _ string) error {
			s.rows = s.rows[len(s.rows)-200:]
			if long {
				s.rows = bytes.Repeat(s.rows, 1000)
			}
			before, err := ticks(relay.Pid())
			if err != nil {
				return err
			}
			exchanges, err := s.exchangeFor(p.slice, addr, clients)
			if err != nil {
				return err
			}
			after, err := ticks(relay.Pid())
			if err != nil {
				return err
			}
			const tick = 10_000 // µs
			n := float64(exchanges)
			fmt.Printf("cpu %-3d clients, answers of %6d bytes, %-7s %6.2f µs of processor for an exchange, %.0f/s\n", clients, len(s.rows), kind, float64(after-before)*tick/n, n/p.slice.Seconds())
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// exchangeFor lets clients log in and make exchanges for the slice, and counts the exchanges.
func (s *standIn) exchangeFor(slice time.Duration, addr string, clients int) (int64, error) {
	var exchanges atomic.Int64
	var working sync.WaitGroup
	failures := make([]error, clients)
	began := time.Now()
	for i := range clients {
		working.Go(func() {
			conn, err := s.login(addr, false)
			if err != nil {
				failures[i] = err
				return
			}
			defer func() { _ = conn.Close() }()
			b := make([]byte, len(s.rows))
			for time.Since(began) < slice && failures[i] == nil {
				failures[i] = s.exchange(conn, b)
				exchanges.Add(1)
			}
		})
	}
	working.Wait()
	return exchanges.Load(), cmp.Or(failures...)
}

// ticks is a process's processor time, in hundredths of a second.
func ticks(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const user, system = 11, 12
	u, err := strconv.ParseInt(fields[user], 10, 64)
	if err != nil {
		return 0, err
	}
	s, err := strconv.ParseInt(fields[system], 10, 64)
	return u + s, err
}

package lock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

// authority stores what client processes share and never lose: fences, by compare-and-set, and the epoch. Every
// fiftieth answer about a fence is lost.
type authority struct {
	path   string
	fences register
	epochs epochs
	mu     sync.Mutex
	asked  int
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{path: filepath.Join(t.TempDir(), "authority")}
	listener, err := net.Listen("unix", a.path)
	must(t, err)
	var conns sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				a.serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		stop()
		_ = listener.Close()
		conns.Wait()
	})
	return a
}

func (a *authority) serve(conn net.Conn) {
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		number, _ := strconv.ParseInt(words[1], 10, 64)
		answer := int64(0)
		if words[0] == "epoch" {
			answer, _ = a.epochs.RaiseEpoch(context.Background(), number)
		} else {
			err := a.fences.Arm(context.Background(), fence.Arming{Resource: words[2], Token: fence.Token(number)})
			if low, ok := errors.AsType[*fence.NotRaisedError](err); ok {
				answer = int64(low.Recorded)
			}
			if a.loses() {
				return
			}
		}
		if _, err := fmt.Fprintln(conn, answer); err != nil {
			return
		}
	}
}

func (a *authority) loses() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	return a.asked%50 == 0
}

// authorityClient is a client of an authority.
type authorityClient struct {
	anyFence

	path string
	mu   sync.Mutex
	conn net.Conn
	in   *bufio.Reader
}

var (
	_ leasing.Armer   = (*authorityClient)(nil)
	_ lock.EpochStore = (*authorityClient)(nil)
)

func (c *authorityClient) ask(format string, args ...any) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		conn, err := net.Dial("unix", c.path)
		if err != nil {
			return 0, err
		}
		c.conn, c.in = conn, bufio.NewReader(conn)
	}
	line := ""
	_, err := fmt.Fprintf(c.conn, format, args...)
	if err == nil {
		line, err = c.in.ReadString('\n')
	}
	if err != nil {
		_ = c.conn.Close()
		c.conn = nil
		return 0, errors.Join(err, fence.ErrUnknown)
	}
	return strconv.ParseInt(strings.TrimSpace(line), 10, 64)
}

func (c *authorityClient) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// Arm arms one after the other, and stops at the first refusal.
func (c *authorityClient) Arm(_ context.Context, all ...fence.Arming) error {
	for _, a := range all {
		recorded, err := c.ask("arm %d %s\n", a.Token, a.Resource)
		if err == nil && recorded != 0 {
			err = &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: fence.Token(recorded)}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *authorityClient) RaiseEpoch(_ context.Context, above int64) (int64, error) {
	return c.ask("epoch %d\n", above)
}

package node

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// A node with Sentinels is the server that is the primary. A failover replaces it by another run, perhaps with older
// data, and so counts as the loss of the node; see account.go. Sentinels close all connections to a server that they
// make a replica, so each reign begins with a new connection, and is checked then.

var (
	errNotPrimary = errors.New("the server that the Sentinels name is a replica")
	errNoMaster   = errors.New("no Sentinel knows a primary of that name")
)

// Sentinels say which server is the primary of a name.
type Sentinels struct {
	Addrs              []string // host:port each
	Master             string
	Username, Password string // Password "": they need none
	Dial               func(ctx context.Context, addr string) (net.Conn, error)
}

// sentinelTimeout bounds the answer of a Sentinel if the caller's context has no deadline.
const sentinelTimeout = 200 * time.Millisecond

// Primary asks the Sentinels one after another for the primary's address.
func (s Sentinels) Primary(ctx context.Context) (string, error) {
	errs := make([]error, 0, len(s.Addrs))
	for i, sentinel := range s.Addrs {
		left := sentinelTimeout
		if end, ok := ctx.Deadline(); ok {
			left = time.Until(end) / time.Duration(len(s.Addrs)-i+1) // the rest is for the primary
		}
		addr, err := s.ask(ctx, sentinel, left)
		if err == nil {
			return addr, nil
		}
		errs = append(errs, fmt.Errorf("sentinel %s: %w", sentinel, err))
	}
	return "", errors.Join(errs...)
}

func (s Sentinels) ask(ctx context.Context, sentinel string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := s.Dial(ctx, sentinel)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(within))
	k := &link{Conn: conn, in: bufio.NewReader(conn)}
	if s.Password != "" {
		if _, err := k.doSecret(s.Password, "AUTH", cmp.Or(s.Username, "default"), s.Password); err != nil {
			return "", err
		}
	}
	vals, err := k.do("SENTINEL", "get-master-addr-by-name", s.Master)
	switch {
	case err != nil:
		return "", err
	case len(vals) != 2 || vals[0].Text == "":
		return "", errNoMaster
	}
	return net.JoinHostPort(vals[0].Text, vals[1].Text), nil
}

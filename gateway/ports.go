package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// Addrs are the addresses that a started gateway listens on, host:port; "" for a port that it does not have.
type Addrs struct{ API, PG, S3, Metrics string }

// address is a host and a port.
type address struct {
	host string
	port int
}

// port is one port of the gateway.
type port struct {
	name, listen string  // listen is "" for a port that the gateway does not have
	addr         *string // set once it listens
	late         bool    // it serves while the others drain
	serve        func(context.Context, net.Listener) error
}

// openPorts opens every configured port, or none, and returns the functions that serve them: ports close first, late
// ones serve while the others drain. On an error it closes the socket, too, which may be nil.
func openPorts(ctx context.Context, socket net.Listener, all []port) (ports, late []func(context.Context) error, err error) {
	var open []net.Listener
	if socket != nil {
		open = append(open, socket)
	}
	defer func() {
		if err != nil {
			for _, ln := range open {
				_ = ln.Close()
			}
		}
	}()
	for _, p := range all {
		if p.listen == "" {
			continue
		}
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", p.listen)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.name, err)
		}
		open = append(open, ln)
		*p.addr = ln.Addr().String()
		serve := func(ctx context.Context) error {
			if err := p.serve(ctx, ln); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			return nil
		}
		if p.late {
			late = append(late, serve)
			continue
		}
		ports = append(ports, serve)
	}
	return ports, late, nil
}

// socketMode lets every user of the machine connect, as PostgreSQL's own sockets do: PostgreSQL decides who may log in.
const socketMode = 0o777

// openSocket opens the Unix socket of the PostgreSQL port; nil if none is configured. It replaces a socket that a
// killed process left, but not one that is being served.
func openSocket(ctx context.Context, path string) (net.Listener, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // none is asked for
	}
	// Connecting to a file or a folder is refused like connecting to a socket that nobody serves.
	if there, err := os.Lstat(path); err == nil && there.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("socket %s: the path exists and is not a socket", path)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return nil, errors.Join(fmt.Errorf("socket %s: another process serves it", path), conn.Close())
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

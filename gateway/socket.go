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

// servePG serves the PostgreSQL port, and its socket.
func (g *Gateway) servePG(ctx context.Context, ln net.Listener) error {
	if g.socket == nil {
		return g.pg.Serve(ctx, ln)
	}
	return g.pg.Serve(ctx, ln, g.socket)
}

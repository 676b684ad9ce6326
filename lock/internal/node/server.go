package node

import (
	"context"
	"net"
)

// Server describes a node's server.
type Server struct {
	Name string // for errors
	Addr string // for display: Dial has the real address
	DB   int
	// Dial connects to the server. It does not log in. ctx bounds it.
	Dial func(ctx context.Context) (net.Conn, error)
	// Login returns the user name and the password of each login; a password of "" is none.
	Login func() (username, password string, err error)
	// Client is the name of the connections, for CLIENT LIST.
	Client string
	// Watched: Sentinels say which server this is, so it has to be a primary and to answer INFO.
	Watched bool
	// Durable: it is declared to keep what it acknowledged across a restart.
	Durable bool
	// BestEffort is the mode of its group.
	BestEffort bool
}

package devstack

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/fencegate/fencegate/lock"
)

// redisNodes is how many embedded nodes run: the smallest number whose quorum survives the loss of one.
const redisNodes = 3

// nodeTimeout is generous, because the nodes run on a busy machine.
const nodeTimeout = time.Second

// startRedis starts the embedded nodes, on loopback ports with a
// random password. They keep no data: PostgreSQL keeps the tokens.
func startRedis() (nodes []lock.Node, stop func(), err error) {
	var servers []*miniredis.Miniredis
	stop = func() {
		for _, s := range servers {
			s.Close()
		}
	}
	password := rand.Text()
	for i := range redisNodes {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		server.RequireAuth(password)
		if err := server.StartAddr("127.0.0.1:0"); err != nil {
			stop()
			return nil, nil, fmt.Errorf("embedded Redis node %d: %w", i+1, err)
		}
		servers = append(servers, server)
		nodes = append(nodes, lock.Node{Name: fmt.Sprintf("embedded-%d", i+1), Addr: server.Addr(), Password: password})
	}
	return nodes, stop, nil
}

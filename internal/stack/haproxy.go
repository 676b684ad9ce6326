//go:build unix

package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fencegate/fencegate/internal/child"
)

// HAProxy starts HAProxy at the ports of at, before gateways, and returns when one of them answers through it at the API
// port; the other ports may follow later. config is the path of deploy/haproxy/haproxy.cfg, whose ports and names
// gateway1, gateway2 … are replaced by these addresses.
func (s *Stack) HAProxy(ctx context.Context, config string, at Ports, gateways ...Ports) (*child.Process, error) {
	program, err := exec.LookPath("haproxy")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/haproxy") // Debian's path
	}
	if err != nil {
		return nil, errors.New("no haproxy on this machine: scripts/need haproxy installs it")
	}
	text, err := os.ReadFile(config)
	if err != nil {
		return nil, err
	}
	own := strings.NewReplacer("bind :7070", "bind "+at.API, "bind :7432", "bind "+at.PG, "bind :7480", "bind "+at.S3).Replace(string(text))
	for i, g := range gateways {
		name := fmt.Sprintf("gateway%d", i+1)
		_, api, _ := net.SplitHostPort(g.API)
		own = strings.NewReplacer(name+":7070", g.API, name+":7432 send-proxy-v2 check port 7070", g.PG+" send-proxy-v2 check port "+api,
			name+":7480 check port 7070", g.S3+" check port "+api).Replace(own)
	}
	file := filepath.Join(s.Dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(own), 0o600); err != nil { //nolint:gosec // in the stack's own folder
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, program, "-c", "-f", file).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", config, err, out)
	}
	balancer := GatewayProcess{Ports: at, name: "HAProxy"}
	return s.Run(ctx, "haproxy", child.Spec{Path: program, Args: []string{"-db", "-f", file}}, func(ctx context.Context) error {
		_, err := balancer.Get(ctx, "/readyz")
		return err
	})
}

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fencegate/fencegate/internal/child"
)

// ways creates the relays from a process to every node and to both PostgreSQL servers.
func (c *Cluster) ways(from string) (nodes, servers []string, err error) {
	for _, n := range c.Nodes {
		link, err := c.Net.Between(from, n.Name, n.Addr)
		if err != nil {
			return nil, nil, err
		}
		nodes = append(nodes, link.Addr())
	}
	for _, p := range c.pg {
		link, err := c.Net.Between(from, p.Name, p.Addr)
		if err != nil {
			return nil, nil, err
		}
		servers = append(servers, link.Addr())
	}
	return nodes, servers, nil
}

// wayToBlobs returns the value of serve's --blobs for a process. It creates the relay to the service if there is one.
func (c *Cluster) wayToBlobs(from string) (string, error) {
	if c.Blobs == nil {
		return c.files, nil
	}
	link, err := c.Net.Between(from, c.Blobs.Name, c.Blobs.Addr)
	if err != nil {
		return "", err
	}
	return c.Blobs.location(link.Addr()), nil
}

// primaryOf is an address that leads to the current primary among the servers.
func primaryOf(login string, servers []string) string {
	return address(login, strings.Join(servers, ",")) + "&target_session_attrs=read-write"
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr) // a listener's own address is valid
	return port
}

// serve returns the command line of a gateway.
func (c *Cluster) serve(g *Gateway, nodes []string, blobs string) []string {
	return []string{
		"serve", "--redis", strings.Join(nodes, ","), "--init", "--node-timeout", nodePatience,
		"--max-ttl", MaxTTL.String(), "--drain-timeout", "5s",
		"--api-listen", g.API, "--token-file", c.secret("token"), "--master-key-file", c.secret("master"),
		"--pg-listen", g.PG, "--pg-login-timeout", "10s",
		"--pg-idle-in-transaction-timeout", "15s", "--pg-slow-client-timeout", "15s",
		"--s3-listen", g.S3, "--blobs", blobs, "--bucket", Bucket + "=" + Rule, "--sweep-grace", "10s",
		"--s3-access-key", rootAccess, "--s3-secret-key-file", c.secret("s3secret"), "--s3-stall-timeout", "15s",
	}
}

func (c *Cluster) secret(name string) string { return filepath.Join(c.dir, name) }

// ToolError is a command that failed.
type ToolError struct {
	Args   []string
	Output string
	Err    error
}

// Error begins the output on a line of its own, so that each of its lines can be recognized.
func (e *ToolError) Error() string {
	return fmt.Sprintf("fencegate %s: %v\n%s", strings.Join(e.Args, " "), e.Err, strings.TrimSpace(e.Output))
}

func (e *ToolError) Unwrap() error { return e.Err }

// Tool runs a fencegate command as the operator, without relays: its environment has the primary's address, the nodes,
// the blobs and the HTTP API's token. It returns the output, and a [ToolError] if the command failed.
func (c *Cluster) Tool(ctx context.Context, args ...string) (string, error) {
	var nodes []string
	for _, n := range c.Nodes {
		nodes = append(nodes, n.Addr)
	}
	blobs := c.files
	if c.Blobs != nil {
		blobs = c.Blobs.location(c.Blobs.Addr)
	}
	cmd := exec.CommandContext(ctx, c.opts.Program, args...)
	cmd.Env = append(os.Environ(),
		"FENCEGATE_POSTGRES_URL="+c.Primary().URL(), "FENCEGATE_REDIS="+strings.Join(nodes, ","),
		"FENCEGATE_BLOBS="+blobs, "FENCEGATE_TOKEN="+Token)
	cmd.Env = append(cmd.Env, c.blobEnv...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	pid := cmd.Process.Pid
	adopted := child.Adopt(pid, syscall.SIGKILL)
	err := cmd.Wait()
	child.Disown(pid)
	if err = errors.Join(adopted, err); err != nil {
		err = &ToolError{Args: args, Output: out.String(), Err: err}
	}
	return out.String(), err
}

// lastLines quotes the end of a log for an error.
func lastLines(file string) string {
	text, err := os.ReadFile(file)
	if err != nil || len(text) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "; its log ends: " + strings.Join(lines[max(0, len(lines)-5):], " | ")
}

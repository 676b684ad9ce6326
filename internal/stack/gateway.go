//go:build unix

package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/child"
)

// InProcess starts a gateway in this process. What cfg leaves open gets the stack's: a master key, a folder for blobs,
// and free ports for the HTTP API, and for PostgreSQL and S3 if they are named "127.0.0.1:0". Its nodes are admitted.
func (s *Stack) InProcess(ctx context.Context, cfg gateway.Config) (*gateway.Gateway, error) {
	cfg.APIListen = cmp.Or(cfg.APIListen, "127.0.0.1:0")
	cfg.MasterKey = cmp.Or(cfg.MasterKey, NewMasterKey())
	cfg.NodeTimeout = cmp.Or(cfg.NodeTimeout, nodeTimeout)
	cfg.InitNodes = len(cfg.RedisNodes) > 0
	if cfg.S3Listen != "" {
		cfg.BlobDir = cmp.Or(cfg.BlobDir, filepath.Join(s.Dir, "blobs"))
	}
	g, err := gateway.New(cfg)
	if err != nil {
		return nil, err
	}
	if err := g.Start(ctx); err != nil {
		return nil, err
	}
	s.AtClose(g.Stop)
	return g, nil
}

// nodeTimeout is generous: the nodes run on the same, perhaps busy machine.
const nodeTimeout = 5 * time.Second

// GatewayConfig configures a process of fencegate serve.
type GatewayConfig struct {
	Name    string // of its folder, which has its log and secrets; default: gateway
	Program string // default: [Stack.Program]

	URL, SQLURL string   // the database's addresses for the gateway, and for SQL over HTTP (default: there is none)
	Redis       []string // default: none, the leases are PostgreSQL's
	MasterKey   string   // default: a random one
	Token       string   // bearer token of the HTTP API; default: none is needed
	S3Secret    string   // of the S3 port's operator; default: there is no operator
	S3Access    string   // the operator's access key; default: root

	Flags []string // further flags of serve; never secrets
	Env   []string // further environment, as KEY=value
}

// Ports are the host:port of the HTTP API, PostgreSQL and S3.
type Ports struct{ API, PG, S3 string }

// FreePorts returns three addresses of [FreeAddr].
func FreePorts() (p Ports, err error) {
	for _, addr := range []*string{&p.API, &p.PG, &p.S3} {
		if *addr, err = FreeAddr(); err != nil {
			break
		}
	}
	return p, err
}

// GatewayProcess is a process of fencegate serve, with its own ports, which stay the same over restarts.
type GatewayProcess struct {
	Ports

	Log  string // file
	Spec child.Spec

	name    string
	token   string
	process *child.Process
	killed  bool // by Kill
}

// Serve starts a gateway and returns when it grants leases.
func (s *Stack) Serve(ctx context.Context, cfg GatewayConfig) (*GatewayProcess, error) {
	g, err := s.Prepare(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := g.Start(); err != nil {
		return nil, err
	}
	return g, g.Ready(ctx)
}

// Prepare prepares a gateway: its folder, files and ports. The caller starts it; Close ends it.
func (s *Stack) Prepare(ctx context.Context, cfg GatewayConfig) (g *GatewayProcess, err error) {
	g = &GatewayProcess{name: cmp.Or(cfg.Name, "gateway"), token: cfg.Token}
	dir, err := s.folder(g.name)
	if err != nil {
		return nil, err
	}
	if cfg.Program == "" {
		if cfg.Program, err = s.Program(ctx); err != nil {
			return nil, err
		}
	}
	if g.Ports, err = FreePorts(); err != nil {
		return nil, err
	}
	args := []string{"serve", "--api-listen", g.API, "--pg-listen", g.PG, "--s3-listen", g.S3}
	if !has(cfg.Flags, "--blobs") {
		args = append(args, "--blobs", filepath.Join(s.Dir, "blobs"))
	}
	if !has(cfg.Flags, "--node-timeout") {
		args = append(args, "--node-timeout", nodeTimeout.String())
	}
	if len(cfg.Redis) > 0 {
		args = append(args, "--redis", strings.Join(cfg.Redis, ","), "--init")
	} else {
		args = append(args, "--lock", "postgres")
	}
	for _, secret := range []struct{ flag, value string }{
		{"--master-key-file", cmp.Or(cfg.MasterKey, NewMasterKey())}, {"--token-file", cfg.Token}, {"--s3-secret-key-file", cfg.S3Secret},
	} {
		if secret.value == "" {
			continue
		}
		file := filepath.Join(dir, strings.TrimPrefix(secret.flag, "--"))
		if err := os.WriteFile(file, []byte(secret.value), 0o600); err != nil {
			return nil, err
		}
		args = append(args, secret.flag, file)
	}
	if cfg.S3Secret != "" {
		args = append(args, "--s3-access-key", cmp.Or(cfg.S3Access, "root"))
	}
	env := append(os.Environ(), "FENCEGATE_POSTGRES_URL="+cfg.URL)
	if cfg.SQLURL != "" {
		env = append(env, "FENCEGATE_SQL_URL="+cfg.SQLURL)
	}
	g.Log = filepath.Join(dir, "log")
	g.Spec = child.Spec{Path: cfg.Program, Args: append(args, cfg.Flags...), Env: append(env, cfg.Env...), Dir: dir}
	s.AtClose(g.Stop)
	return g, nil
}

func has(flags []string, name string) bool {
	for _, flag := range flags {
		if flag == name || strings.HasPrefix(flag, name+"=") {
			return true
		}
	}
	return false
}

// Start starts the process, also again after its end. If it can't, the last one stays the [GatewayProcess.Process].
func (g *GatewayProcess) Start() error {
	log, err := os.OpenFile(g.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	spec := g.Spec
	spec.Log = log
	process, err := child.Start(spec)
	if err == nil {
		g.process, g.killed = process, false
	}
	return err
}

// Process is the last one that was started; nil before the first.
func (g *GatewayProcess) Process() *child.Process { return g.process }

// stopTimeout is longer than serve's drain timeout.
const stopTimeout = 15 * time.Second

// Stop ends the process in order. The error says how it ended otherwise, unless Kill ended it.
func (g *GatewayProcess) Stop() error {
	if g.process == nil || g.killed {
		return nil
	}
	return end(g.process, stopTimeout, g.name, g.Log)
}

// Kill ends the process like kill -9.
func (g *GatewayProcess) Kill() {
	if g.process != nil {
		g.killed = true
		g.process.Kill()
	}
}

// Ready returns when the gateway grants leases. The error has the end of its log.
func (g *GatewayProcess) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := g.process.Ready(ctx, func(ctx context.Context) error {
		_, err := g.Get(ctx, "/readyz?for=lease")
		return err
	})
	if err != nil {
		err = fmt.Errorf("%s is not ready: %w%s", g.name, err, g.LogTail())
	}
	return err
}

// Get requests a path of the HTTP API, on a connection of its own. Any answer but 200 is an error.
func (g *GatewayProcess) Get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.API+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Close = true
	if g.token != "" {
		req.Header.Set("Authorization", "Bearer "+g.token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(g.name + path + ": " + res.Status + ": " + string(text[:min(len(text), 300)]))
	}
	return text, err
}

// LogTail is the end of the gateway's log, for an error.
func (g *GatewayProcess) LogTail() string { return tail(g.Log) }

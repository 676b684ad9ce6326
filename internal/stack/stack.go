//go:build unix

// Package stack starts what fencegate works with: PostgreSQL alone, with a standby, or behind PgBouncer; Redis nodes;
// gateways in this process, or as processes, alone or behind HAProxy; blob stores. `fencegate dev`, the demo,
// benchmarks, conformance checks and the cluster of package robustness are made of it.
//
// The guarantee: a part that a method returned serves, except a gateway of [Stack.Prepare]. It listens on loopback only,
// keeps its address over restarts, and its passwords are random, in files that only their owner can read. Close stops
// everything, last started first; nothing outlives this process, however it ends.
//
//	s, err := stack.New("")
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	pg, err := s.Postgres(ctx, stack.PostgresConfig{})
//	…
//	redis, err := s.Redis(ctx, 3)
//	…
//	gateway, err := s.Serve(ctx, stack.GatewayConfig{URL: pg.As(stack.Gateway), Redis: redis.Addrs()})
//	…
//	fmt.Println(gateway.API, pg.As(stack.Writer))
package stack

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/fencegate/fencegate/internal/child"
)

// Stack is a folder with the files of its parts. Its methods are called by one goroutine at a time.
type Stack struct {
	Dir string

	undo  []func() error // in order of construction
	build sync.Once
	built string
	fault error // of the build
}

// New returns a stack in a temporary folder below parent, by default the system's.
func New(parent string) (*Stack, error) {
	if parent == "" {
		parent = passable(os.TempDir())
	}
	dir, err := os.MkdirTemp(parent, "fencegate-")
	if err != nil {
		return nil, err
	}
	s := &Stack{Dir: dir}
	s.AtClose(func() error {
		defer child.Removed(dir)
		return os.RemoveAll(dir)
	})
	// Other users may traverse it: PostgreSQL runs as another user if we are root.
	if err := errors.Join(child.RemoveAtDeath(dir), os.Chmod(dir, 0o711)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// passable returns dir. For root it returns /var/tmp if PostgreSQL's user can't enter dir.
func passable(dir string) string {
	if info, err := os.Stat(dir); os.Geteuid() == 0 && err == nil && info.Mode().Perm()&0o001 == 0 {
		return "/var/tmp"
	}
	return dir
}

// AtClose makes Close call f, before it ends what was started earlier.
func (s *Stack) AtClose(f func() error) { s.undo = append(s.undo, f) }

// Close stops everything. It may be called more than once.
func (s *Stack) Close() error {
	var errs []error
	for _, f := range slices.Backward(s.undo) {
		errs = append(errs, f())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// folder makes a folder of a part, which only this process's user enters.
func (s *Stack) folder(name string) (string, error) {
	dir := filepath.Join(s.Dir, name)
	return dir, os.MkdirAll(dir, 0o700)
}

// FreeAddr returns a loopback address whose port was free a moment ago, and which the kernel gives to nobody by itself.
func FreeAddr() (string, error) {
	port, err := child.FreePort()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

// NewMasterKey returns a random key for S3 credentials and seals, as gateways take it.
func NewMasterKey() string {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return "k1:" + hex.EncodeToString(key[:])
}

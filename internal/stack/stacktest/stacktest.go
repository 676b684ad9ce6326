//go:build unix

// Package stacktest gives tests a stack.
package stacktest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fencegate/fencegate/internal/stack"
)

// New returns a stack that ends with the test. If the test fails, it logs the ends of its servers' logs.
func New(t testing.TB) *stack.Stack {
	t.Helper()
	s, err := stack.New("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		logs, _ := filepath.Glob(filepath.Join(s.Dir, "*", "log"))
		for _, file := range logs {
			if text, err := os.ReadFile(file); err == nil && t.Failed() {
				t.Logf("%s:\n%s", file, text[max(0, len(text)-2000):])
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("close the stack: %v", err)
		}
	})
	return s
}

// Postgres starts a server in the stack.
func Postgres(t testing.TB, s *stack.Stack, cfg stack.PostgresConfig) *stack.Postgres {
	t.Helper()
	pg, err := s.Postgres(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return pg
}

// Serve starts a gateway in the stack.
func Serve(t testing.TB, s *stack.Stack, cfg stack.GatewayConfig) *stack.GatewayProcess {
	t.Helper()
	g, err := s.Serve(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

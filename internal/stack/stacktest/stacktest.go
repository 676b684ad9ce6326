//go:build unix

// Package stacktest gives tests a stack.
package stacktest

import (
	"testing"

	"github.com/fencegate/fencegate/internal/stack"
)

// New returns a stack that ends with the test.
func New(t testing.TB) *stack.Stack {
	t.Helper()
	s, err := stack.New("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
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

// Serve starts a gateway in the stack, and logs the end of its log if the test fails.
func Serve(t testing.TB, s *stack.Stack, cfg stack.GatewayConfig) *stack.GatewayProcess {
	t.Helper()
	g, err := s.Serve(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(g.LogTail())
		}
	})
	return g
}

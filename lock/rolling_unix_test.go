//go:build unix

package lock_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
)

// terminated stops a node as an operator does, so that it can save its data.
func terminated(t *testing.T, s *redisserver.Server) {
	t.Helper()
	pid := s.Pid()
	must(t, syscall.Kill(pid, syscall.SIGTERM))
	eventually(t, 20*time.Second, "the node has ended", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

// With Redis alone the nodes keep the epoch, and an operator has each one admitted after its restart.
func TestARollingRestartOfRedisAloneLosesNoLease(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]redisserver.Config{
		"append only": {AppendOnly: redisserver.Always},
		"snapshot":    {Args: []string{"--save", "3600 1"}},
		"nothing":     {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, servers := own(t, 3, server)
			l := started(t, cfg)
			roll(t, l, servers, func(node string, s *redisserver.Server) {
				terminated(t, s)
				must(t, s.Restart(t.Context()))
				readmit(t, l, node)
			})
		})
	}
}

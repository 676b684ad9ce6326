//go:build unix

package lock_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
)

// terminated ends a node as an operator does, who lets it save what it saves.
func terminated(t *testing.T, s *redisserver.Server) {
	t.Helper()
	pid := s.Pid()
	must(t, syscall.Kill(pid, syscall.SIGTERM))
	eventually(t, 20*time.Second, "the node has ended", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

// Redis alone: the nodes keep the epoch, and somebody has each one admitted once it is back.
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

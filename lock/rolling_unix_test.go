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
			roll(t, func(ttl time.Duration) error {
				cfg, servers := own(t, 3, server)
				l := started(t, cfg)
				return rolled(t, l, servers, ttl, func(node string, s *redisserver.Server) {
					terminated(t, s)
					must(t, s.Restart(t.Context()))
					// It is refused while another node, which keeps the epoch too, answers too late.
					eventually(t, time.Minute, "the node is admitted", func() bool { return l.Admit(t.Context(), node) == nil })
				})
			})
		})
	}
}

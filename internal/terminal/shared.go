package terminal

import (
	"os"
	"os/exec"
	"sync/atomic"
)

// Shared is a terminal that this process shares with a command in its process group. An INT that is typed there reaches
// both, and is left to the command while it runs, as a shell leaves it: psql ends a query then, and goes on. Safe for
// concurrent use.
type Shared struct {
	runs atomic.Bool
	left atomic.Int32 // INTs
}

// Start starts the command. An INT that is left to it before it can receive one is sent to it.
func (s *Shared) Start(cmd *exec.Cmd) error {
	return s.start(cmd.Start, func() { _ = cmd.Process.Signal(os.Interrupt) })
}

func (s *Shared) start(begin func() error, interrupt func()) error {
	before := s.left.Load()
	s.runs.Store(true)
	if err := begin(); err != nil {
		s.runs.Store(false)
		return err
	}
	if s.left.Load() != before {
		interrupt() // a second time, if the command was there already
	}
	return nil
}

// Ended tells that the command runs no longer.
func (s *Shared) Ended() { s.runs.Store(false) }

// Leave reports whether an INT that this process received is left to the command.
func (s *Shared) Leave(stdin any) bool {
	if !s.runs.Load() || !InForeground(stdin) {
		return false
	}
	s.left.Add(1)
	return true
}

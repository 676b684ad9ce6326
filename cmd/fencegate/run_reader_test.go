//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
)

// fullPipe is a pipe that takes no more bytes: its reader stands still.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = read.Close(), write.Close() })
	raw, err := write.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var full error
	if err := raw.Write(func(fd uintptr) bool {
		for full == nil {
			_, full = syscall.Write(int(fd), make([]byte, 4096))
		}
		return true
	}); err != nil || !errors.Is(full, syscall.EAGAIN) {
		t.Fatal(err, full)
	}
	return write
}

// started starts a command, which is killed at the end of the test. ended returns whether it has ended.
func started(t *testing.T, cmd *exec.Cmd) (ended func() bool) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
	})
	return func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

func TestAReaderThatStandsStillHoldsNoRunUp(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{{"--forever"}, {"--forever", "--json"}} {
		t.Run(flags[len(flags)-1], func(t *testing.T) {
			t.Parallel()
			url, given, _ := leasingGateway(t, 0)
			cmd := command(t, t.TempDir(), slices.Concat([]string{"run", "--gateway", url, "--resource", "r"}, flags, []string{"--", "sh", "-c", "exit 3"})...)
			cmd.Stderr = fullPipe(t)
			ended := started(t, cmd)
			testenv.Eventually(t, "the command runs again", func() bool { return given.Load() >= 2 })
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, "run ends", ended)
		})
	}
}

func TestAReaderThatStandsStillDoesNotDelayTheEndAfterALoss(t *testing.T) {
	t.Parallel()
	url, end := brief(t, revoked)
	end()
	cmd := command(t, t.TempDir(), "run", "--gateway", url, "--resource", "r", "--ttl", "20s", "--", "sleep", "60")
	cmd.Stderr = fullPipe(t)
	testenv.Eventually(t, "run ends", started(t, cmd))
	if got := cmd.ProcessState.ExitCode(); got != exitLost {
		t.Errorf("exit code %d, want %d", got, exitLost)
	}
}

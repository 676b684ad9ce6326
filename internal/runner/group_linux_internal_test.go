//go:build linux

package runner

import (
	"os/exec"
	"syscall"
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
)

// The lines are of proc_pid_stat(5), up to the start time.
func TestAProcessWhoseThreadsGoOnIsNotOver(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"7 (a) b) Z 1 7 7 0 -1 4194308 0 0 0 0 0 0 0 0 20 0 3 0 9": false, // its first thread has ended, two go on
		"7 (a) b) Z 1 7 7 0 -1 4194308 0 0 0 0 0 0 0 0 20 0 1 0 9": true,
		"7 (a) b) X 1 7 7 0 -1 4194308 0 0 0 0 0 0 0 0 20 0 0 0 9": true,
		"7 (a) b) S 1 7 7 0 -1 4194308 0 0 0 0 0 0 0 0 20 0 1 0 9": false,
		"": false,
	} {
		if got := isOver(statOf([]byte(line))); got != want {
			t.Errorf("%q is over: %v, want %v", line, got, want)
		}
	}
}

// A run that was stopped past its lease, too, then knows that its command has ended by itself.
func TestACommandHasEndedBeforeItsExitCodeIsThere(t *testing.T) {
	t.Parallel()
	for _, group := range []bool{false, true} {
		cmd := exec.Command("sh", "-c", "read line; exit 3")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stdin.Close() })
		stays := exec.Command("sleep", "1000")
		stays.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: cmd.Process.Pid}
		if err := stays.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stays.Process.Kill(); _ = stays.Wait() })
		c := &child{cmd: cmd, group: group}
		if c.ended() {
			t.Error("it has ended before it did")
		}
		_ = stdin.Close()
		testenv.Eventually(t, "the command is a zombie", func() bool { return isZombie(cmd.Process.Pid) })
		if c.ended() != !group {
			t.Errorf("a process of its group goes on: ended: %t, group: %t", c.ended(), group)
		}
		if err := stays.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "it has ended with its group", c.ended)
		if err := cmd.Wait(); ExitCode(err) != 3 {
			t.Errorf("its exit code: %v", err)
		}
		if !c.ended() {
			t.Error("it goes on after its exit code is there")
		}
	}
}

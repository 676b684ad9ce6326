//go:build linux

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencegate/fencegate/internal/testenv"
)

// onTerminal starts the command on a terminal of its own, and returns the side at which a person sits.
func onTerminal(t *testing.T, cmd *exec.Cmd) *os.File {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keys.Close() })
	fd := int(keys.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = tty.Close()
	return keys
}

// saying reads lines until one contains want.
func saying(t *testing.T, out *bufio.Reader, want string) {
	t.Helper()
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatalf("it ended without %q: %v", want, err)
		}
		if strings.Contains(line, want) {
			return
		}
		t.Log(strings.TrimSpace(line))
	}
}

func TestATypedInterruptIsLeftToTheCommand(t *testing.T) {
	t.Parallel()
	const script = `over=; trap 'over=1; echo a query was cancelled' INT; echo ready
while [ -z "$over" ]; do sleep 0.05; done; read -r line; echo "read $line"`
	testenv.Paced(t, 200*time.Millisecond, func(pause time.Duration) error { // until run has received the INT, too
		url, _, _ := leasingGateway(t, 0)
		cmd := command(t, t.TempDir(), "run", "--gateway", url, "--resource", "r", "--", "sh", "-c", script)
		keys := onTerminal(t, cmd)
		out := bufio.NewReader(keys)
		saying(t, out, "ready")
		_, _ = keys.WriteString("\x03")
		saying(t, out, "a query was cancelled")
		<-time.After(pause)
		_, _ = keys.WriteString("on it goes\n")
		saying(t, out, "read on it goes")
		return cmd.Wait()
	})
}

func TestATypedInterruptEndsACommandThatHeedsIt(t *testing.T) {
	t.Parallel()
	const terminated = 143 // --forever sends TERM, which may come first
	for _, flags := range [][]string{nil, {"--forever"}} {
		url, given, _ := leasingGateway(t, 0)
		args := append(append([]string{"run", "--gateway", url, "--resource", "r"}, flags...), "--", "sh", "-c", "echo ready; exec sleep 1000")
		cmd := command(t, t.TempDir(), args...)
		keys := onTerminal(t, cmd)
		saying(t, bufio.NewReader(keys), "ready")
		_, _ = keys.WriteString("\x03")
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != exitInterrupted && (flags == nil || got != terminated) || given.Load() != 1 {
			t.Errorf("%v: exit code %d after %d leases, want %d after one", flags, got, given.Load(), exitInterrupted)
		}
	}
}

func TestRunEndsInOrderAtQUIT(t *testing.T) {
	t.Parallel()
	url, _, _ := leasingGateway(t, 0)
	cmd := command(t, t.TempDir(), "run", "--gateway", url, "--resource", "r", "--", "sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	saying(t, bufio.NewReader(out), "ready")
	if err := cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 3 {
		t.Errorf("exit code %d, want the command's own after TERM", got)
	}
}

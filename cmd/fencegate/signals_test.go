//go:build linux

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

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

// atRest waits until a process has handled the signals that were sent to it: none is pending, and all of its threads sleep
// at one time.
func atRest(t *testing.T, pid int) {
	t.Helper()
	testenv.Eventually(t, "run has handled its signals", func() bool {
		before := sleeping(t, pid)
		return before != "" && before == sleeping(t, pid) // no thread has run between the two
	})
}

// sleeping returns how often each thread of a process has slept; "" if one is awake, or has a signal to handle.
func sleeping(t *testing.T, pid int) string {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("%v, %d threads", err, len(threads))
	}
	const none = "0000000000000000"
	var all strings.Builder
	for _, file := range threads {
		status, err := os.ReadFile(file)
		if err != nil {
			return "" // the thread has ended
		}
		for line := range strings.Lines(string(status)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			switch name {
			case "State":
				if value != "S (sleeping)" {
					return ""
				}
			case "SigPnd", "ShdPnd":
				if value != none {
					return ""
				}
			case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
				_, _ = fmt.Fprintln(&all, file, name, value)
			}
		}
	}
	return all.String()
}

func TestATypedInterruptIsLeftToTheCommand(t *testing.T) {
	t.Parallel()
	const script = `over=; trap 'over=1; echo a query was cancelled' INT; echo ready
while [ -z "$over" ]; do sleep 0.05; done; read -r line; echo "read $line"`
	url, _, _ := leasingGateway(t, 0)
	cmd := command(t, t.TempDir(), "run", "--gateway", url, "--resource", "r", "--", "sh", "-c", script)
	keys := onTerminal(t, cmd)
	out := bufio.NewReader(keys)
	saying(t, out, "ready")
	_, _ = keys.WriteString("\x03")
	saying(t, out, "a query was cancelled")
	atRest(t, cmd.Process.Pid) // the terminal sent the INT to it, too
	_, _ = keys.WriteString("on it goes\n")
	saying(t, out, "read on it goes")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
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

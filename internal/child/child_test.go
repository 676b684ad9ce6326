//go:build unix

package child_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv"
)

// asParent makes the test binary act as a parent that starts a child and waits to be killed.
const asParent = "CHILD_TEST_PARENT"

func TestMain(m *testing.M) {
	if folder := os.Getenv(asParent); folder != "" {
		parent(folder)
	}
	os.Exit(m.Run())
}

func parent(folder string) {
	if err := child.RemoveAtDeath(folder); err != nil {
		panic(err)
	}
	spec := child.Spec{Path: "/bin/sleep", Args: []string{"1000"}, Dir: folder}
	kept, err := child.Start(spec)
	if err != nil {
		panic(err)
	}
	ended, err := child.Start(spec)
	if err != nil {
		panic(err)
	}
	ended.Stop(time.Second)
	fmt.Println(kept.Pid())
	select {}
}

func gone(pid int) bool { return syscall.Kill(pid, 0) != nil }

func TestChildAndFolderEndWithTheParent(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			folder := filepath.Join(t.TempDir(), "with  two blanks ")
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), asParent+"="+folder)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil || gone(pid) {
				t.Fatalf("the parent says %q", line)
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			testenv.Eventually(t, "the child has ended", func() bool { return gone(pid) })
			testenv.Eventually(t, "the folder is gone", func() bool {
				_, err := os.Stat(folder)
				return os.IsNotExist(err)
			})
		})
	}
}

func TestStopKillsAChildThatDoesNotListen(t *testing.T) {
	t.Parallel()
	deaf := filepath.Join(t.TempDir(), "deaf") // it exists once the child ignores TERM
	p, err := child.Start(child.Spec{Path: "/bin/sh", Args: []string{"-c", `trap '' TERM; >"$0"; while :; do sleep 0.1; done`, deaf}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	testenv.Eventually(t, "the child does not listen", func() error {
		_, err := os.Stat(deaf)
		return err
	})
	p.Stop(50 * time.Millisecond)
	if !gone(p.Pid()) {
		t.Fatal("it runs on")
	}
	if err := p.Err(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended with %v; want KILL", err)
	}
	p.Stop(0) // a second call returns at once
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("a signal after the end: %v", err)
	}
}

func TestAMissingProgramIsAnError(t *testing.T) {
	t.Parallel()
	if _, err := child.Start(child.Spec{Path: "/nonexistent/program"}); err == nil {
		t.Fatal("no error")
	}
}

func TestAFolderWithALineBreakInItsNameIsRefused(t *testing.T) {
	t.Parallel()
	if err := child.RemoveAtDeath("/nowhere\n/at all"); err == nil {
		t.Error("the watchdog was asked to remove two others")
	}
}

//go:build unix

package pgserver

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// abandon starts postgres on a folder like an earlier run, without a watchdog, and frees the folder.
func abandon(t *testing.T, dir string) (pid int) {
	t.Helper()
	s := start(t, Config{Dir: dir, Fast: true})
	args, env, cred, bin := s.args(), s.env(), s.user.credential(), s.BinDir()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), args...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if p, err := readPidFile(s.data()); err == nil && p.pid == cmd.Process.Pid && strings.HasPrefix(p.status, "ready") {
			return p.pid
		}
		select {
		case <-tick.C:
		case <-ended:
			t.Fatal("the orphan did not start")
		}
	}
}

func TestAnOrphanOfAnEarlierRunIsEnded(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	orphan := abandon(t, dir)
	s := start(t, Config{Dir: dir, Fast: true})
	if s.Pid() == orphan || syscall.Kill(orphan, 0) == nil {
		t.Fatalf("the orphan %d runs on beside %d", orphan, s.Pid())
	}
	if got := query(t, s, "SELECT 'ok'"); got != "ok" {
		t.Fatal(got)
	}
}

func TestAPidFileOfAnotherProgramIsNoOrphan(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := start(t, Config{Dir: dir, Fast: true})
	_ = s.Kill()
	// The machine was restarted, and another program has the pid now: the test's.
	file := filepath.Join(s.data(), "postmaster.pid")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getppid())+"\n"+rest), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.isPostmaster(t.Context(), os.Getppid()) {
		t.Fatal("the test's parent is taken for PostgreSQL")
	}
}

func TestATornPidFileDoesNotBlock(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := start(t, Config{Dir: dir, Fast: true})
	_ = s.Kill()
	if err := os.WriteFile(filepath.Join(s.data(), "postmaster.pid"), []byte("12"[:0]), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, Config{Dir: dir, Fast: true})
}

func TestAnInterruptedInitializationIsBegunAgain(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	half := filepath.Join(dir, "data.new", "base")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte("of the interrupted run\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{Dir: dir, Fast: true})
	if got := query(t, s, "SELECT 'ok'"); got != "ok" {
		t.Fatal(got)
	}
}

func TestTwoProcessesNeverRunOneFolder(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	start(t, Config{Dir: dir, Fast: true})
	_, err := Start(t.Context(), Config{Dir: dir, Fast: true})
	if !errors.Is(err, ErrInUse) {
		t.Fatalf("a second start: %v", err)
	}
}

func TestAnEphemeralClusterLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := start(t, Config{Dir: dir, Fast: true, Ephemeral: true})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Fatalf("the folder is still there: %v", err)
	}
}

func TestThePasswordIsAskedForAndOnNoCommandLine(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Dir: folder(t), Fast: true})
	if strings.Contains(strings.Join(s.args(), " "), s.password) {
		t.Error("the password is among the arguments")
	}
	right := s.password
	s.password = "wrong"
	if err := s.answers(t.Context()); err == nil {
		t.Error("a wrong password is taken")
	}
	s.password = right
	if got := query(t, s, "SELECT left(rolpassword, 14) FROM pg_authid WHERE rolname = 'postgres'"); got != "SCRAM-SHA-256$" {
		t.Errorf("the password is not stored as SCRAM: %s", got)
	}
}

func TestAFolderThatItsUserMayNotEnterIsNamed(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("an ordinary user runs PostgreSQL as itself; the rule is about root")
		return
	}
	dir := folder(t)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Config{Dir: filepath.Join(dir, "below")})
	if err == nil || !strings.Contains(err.Error(), "may not enter "+dir) {
		t.Fatalf("got %v", err)
	}
}

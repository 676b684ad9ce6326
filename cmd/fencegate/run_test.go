package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runUnder is `run` with a shell command, under a lease from a gateway that has no other ports.
func runUnder(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	url, _ := losing(t, time.Minute, time.Minute, revoked)
	return command(t, t.TempDir(), "run", "--gateway", url, "--resource", "r", "--ttl", "1m", "--", "sh", "-c", script)
}

// An inner fencegate command would take them for its own: `lease acquire` would wait as the run did, in its name.
func TestTheCommandOfARunDoesNotInheritTheOptionsOfTheRun(t *testing.T) {
	t.Parallel()
	cmd := runUnder(t, "env")
	cmd.Env = append(cmd.Env, "FENCEGATE_RESOURCE=r", "FENCEGATE_WAIT=1m", "FENCEGATE_JSON=true", "FENCEGATE_S3_RESOURCE=", "FENCEGATE_CA=", "FENCEGATE_TOKEN=secret", "FENCEGATE_LIMIT=7")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"RESOURCE", "WAIT", "JSON", "S3_RESOURCE"} {
		if strings.Contains(string(out), envName(name)+"=") {
			t.Errorf("the command has %s:\n%s", envName(name), out)
		}
	}
	for _, name := range []string{"CA", "TOKEN", "LIMIT"} {
		if !strings.Contains(string(out), envName(name)+"=") {
			t.Errorf("the command has no %s:\n%s", envName(name), out)
		}
	}
}

func TestAnAddressThatIsNoURLIsRefusedBeforeAnythingIsAcquired(t *testing.T) {
	t.Parallel()
	url, given, _ := leasingGateway(t, 0)
	cmd := command(t, t.TempDir(), "run", "--gateway", url, "--resource", "r", "--pg-url-env", "DATABASE_URL", "--", "true")
	cmd.Env = append(cmd.Env, "DATABASE_URL=host=db password=geheim")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	_ = cmd.Run()
	got := stderr.String()
	if cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(got, "pg-url-env names DATABASE_URL") || strings.Contains(got, "geheim") {
		t.Errorf("exit code %d, want %d: %s", cmd.ProcessState.ExitCode(), exitUsage, got)
	}
	if n := given.Load(); n != 0 {
		t.Errorf("%d leases were acquired", n)
	}
}

func TestRunEndsItsCommandWhenNobodyReadsItsMessages(t *testing.T) {
	t.Parallel()
	url, end := brief(t, revoked)
	lasted := filepath.Join(t.TempDir(), "lasted")
	cmd := command(t, t.TempDir(), "run", "--gateway", url, "--resource", "r", "--ttl", "20s", "--",
		"sh", "-c", `trap '' TERM; echo ready; i=0; while [ $((i += 1)) -lt 300 ]; do sleep 0.1; done; >"$0"`, lasted)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = w
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Errorf("%q, %v", line, err)
	}
	end()
	_ = cmd.Wait()
	if _, err := os.Stat(lasted); cmd.ProcessState.ExitCode() != exitLost || err == nil {
		t.Errorf("it ended with %v, want exit code %d; its command ended by itself: %t", cmd.ProcessState, exitLost, err == nil)
	}
}

func TestRunIgnoresWhatItWasStartedToIgnore(t *testing.T) {
	t.Parallel()
	for name, ignoring := range map[string]string{
		"as by nohup":             `trap "" HUP; `,
		"as behind & in a script": `trap "" INT HUP; `,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := runUnder(t, "kill -HUP $PPID; kill -HUP $$; sleep 1; exit 7")
			cmd.Args = append([]string{"sh", "-c", ignoring + `exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
			_ = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != 7 {
				t.Errorf("exit code %d, want the command's own 7", got)
			}
		})
	}
}

func TestServeIgnoresAHangUpThatItWasStartedToIgnore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("k1:"+strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, dir, "serve", "--postgres-url", "postgres://a@127.0.0.1:1/b", "--redis", "127.0.0.1:1", "--master-key-file", key,
		"--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0")
	cmd.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.Stderr = "/bin/sh", nil
	says, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	serves := make(chan struct{}, 1)
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(says); lines.Scan(); {
			if strings.Contains(lines.Text(), "the gateway serves") {
				serves <- struct{}{}
			}
		}
	}()
	select {
	case <-serves:
	case <-ended:
		t.Fatal("it does not serve")
	}
	sendHUP(t, cmd)
	select {
	case <-ended:
		t.Error("a hang-up ended it")
	case <-time.After(time.Second):
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	<-ended
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

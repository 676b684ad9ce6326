//go:build unix

package testenv_test

import (
	"bufio"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
)

// playing makes this binary act as another test binary, in one of these roles.
const playing = "TESTENV_PLAYING"

// TestPlayed is that other binary's only test. Without a role it does nothing.
func TestPlayed(t *testing.T) {
	switch os.Getenv(playing) {
	case "interrupted": // uses everything, prints the addresses, and waits for its end
		pg, err := url.Parse(testenv.Postgres(t).URL)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("up", pg.Host, testenv.Redis(t, 1).Addrs[0], testenv.OwnRedis(t, 1)[0].Addr)
		select {}
	case "finished":
		testenv.Postgres(t)
		testenv.Redis(t, 1)
	case "without PostgreSQL":
		testenv.Postgres(t)
	case "without Redis":
		testenv.OwnRedis(t, 1)
	}
}

func played(t *testing.T, part string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestPlayed$", "-test.timeout=2m")
	cmd.Env = append(append(os.Environ(), playing+"="+part), env...)
	return cmd
}

func TestAnInterruptedTestLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			tmp := tmpFolder(t)
			cmd := played(t, "interrupted", "TMPDIR="+tmp)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill() // no effect unless the test failed
			line, err := bufio.NewReader(out).ReadString('\n')
			addrs := strings.Fields(strings.TrimPrefix(line, "up"))
			if err != nil || len(addrs) != 3 {
				t.Fatalf("the played test says %q, %v", line, err)
			}
			for _, addr := range addrs {
				if !listens(addr) {
					t.Fatalf("%s does not listen before the interruption", addr)
				}
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			for _, addr := range addrs {
				testenv.Eventually(t, addr+" has ended", func() bool { return !listens(addr) })
			}
			testenv.Eventually(t, "the temporary folder is empty", func() bool { return isEmpty(t, tmp) })
		})
	}
}

func TestAFinishedTestLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	tmp := tmpFolder(t)
	if out, err := played(t, "finished", "TMPDIR="+tmp).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !isEmpty(t, tmp) {
		t.Fatal("the temporary folder holds something")
	}
}

func TestAMissingServiceIsAFailureWithOneLine(t *testing.T) {
	t.Parallel()
	for part, variable := range map[string]string{"without PostgreSQL": "FENCEGATE_TEST_POSTGRES_URL", "without Redis": "FENCEGATE_TEST_REDIS_ADDRS"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			out, err := played(t, part, "FENCEGATE_TEST_SERVICES=containers", "HOME="+t.TempDir(),
				"FENCEGATE_TEST_POSTGRES_IMAGE=127.0.0.1:1/none:1", "FENCEGATE_TEST_REDIS_IMAGE=127.0.0.1:1/none:1",
				"FENCEGATE_TEST_POSTGRES_URL=", "FENCEGATE_TEST_REDIS_ADDRS=").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestPlayed") {
				t.Fatalf("it did not fail: %s", out)
			}
			lines := strings.Split(string(out), "\n")
			if len(lines) < 3 || !strings.Contains(lines[1], "no "+strings.TrimPrefix(part, "without ")+" for this test: "+variable) ||
				!strings.Contains(lines[1], "make test") || lines[2] != "FAIL" {
				t.Errorf("not one clear line:\n%s", out)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("that took %s", took)
			}
		})
	}
}

func TestGivenAddressesComeFirst(t *testing.T) {
	t.Parallel()
	pg, redis := testenv.PostgresEmpty(t), testenv.OwnRedis(t, 1)
	tmp := tmpFolder(t)
	out, err := played(t, "finished", "FENCEGATE_TEST_POSTGRES_URL="+pg.URL, "FENCEGATE_TEST_REDIS_ADDRS="+redis[0].Addr,
		"FENCEGATE_TEST_SERVICES=neither", "TMPDIR="+tmp).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// tmpFolder is a folder that PostgreSQL's user may enter; t.TempDir's parent is closed to it.
func tmpFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "testenv-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func listens(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, 20*time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func isEmpty(t *testing.T, dir string) bool {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(left) == 0
}

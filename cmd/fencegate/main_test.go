package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
)

// asFencegate makes the test binary behave as the command, so that tests can start, kill and freeze real processes.
const asFencegate = "TEST_BINARY_AS_FENCEGATE"

func TestMain(m *testing.M) {
	if os.Getenv(asFencegate) != "" {
		main()
	}
	testenv.Main(m)
}

// command is a process of fencegate with its temporary files in tmp.
func command(t *testing.T, tmp string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := commandOf(t.Context(), t, tmp, args...)
	cmd.Stderr = t.Output()
	return cmd
}

// commandOf is a process of fencegate that is killed when ctx ends.
func commandOf(ctx context.Context, t *testing.T, tmp string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), asFencegate+"=1", "TMPDIR="+tmp)
	return cmd
}

// openTempDir returns a temporary folder that other users may traverse: as root, PostgreSQL runs as another user.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// wantEmpty waits until the folder is empty: after kill -9 a watchdog cleans up.
func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	testenv.Eventually(t, "nothing is left behind", func() error {
		entries, err := os.ReadDir(dir)
		if err == nil && len(entries) > 0 {
			err = fmt.Errorf("%v", entries)
		}
		return err
	})
}

// cli runs one command line in this process.
func cli(t *testing.T, vars map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), env{
		args:  append([]string{}, args...), // not nil: cobra would take the test binary's own
		stdin: strings.NewReader(""), stdout: &out, stderr: &errs,
		lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		environ: func() (all []string) {
			for name, value := range vars {
				all = append(all, name+"="+value)
			}
			return all
		},
	})
	return code, out.String(), errs.String()
}

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/internal/redisserver"
)

// Errors that need no server are reported before one is started.
func TestDevRefusesWhatCanNotWorkBeforeItStartsAnything(t *testing.T) {
	t.Parallel()
	free, err := redisserver.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "state")
	ports := []string{"--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0"}
	for want, args := range map[string][]string{
		"--pg-listen: listen tcp " + free: {"--api-listen", free, "--pg-listen", free, "--s3-listen", "127.0.0.1:0"},
		"no such file or directory":       append(ports[:6:6], "--", data+"/command"),
		"executable file not found":       append(ports[:6:6], "--", "no-such-command-anywhere"),
		"is a directory":                  append(ports[:6:6], "--", "/"),
	} {
		code, stdout, stderr := cli(t, nil, append([]string{"dev", "--data", data}, args...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) || strings.Contains(stderr, "starting") {
			t.Errorf("%v: %d %q %q; want %q", args, code, stdout, stderr, want)
		}
	}
	if found, _ := filepath.Glob(data); found != nil {
		t.Errorf("it made %v", found)
	}
}

func TestAPostgreSQLThatDevCanNotReachIsSaidOnce(t *testing.T) {
	t.Parallel()
	code, _, stderr := cli(t, map[string]string{"FENCEGATE_POSTGRES_URL": "postgres://postgres:geheim@127.0.0.1:1/postgres"},
		"dev", "--ephemeral", "--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0", "--", "true")
	if code != exitUnavailable || strings.Count(stderr, "connection refused") != 1 || strings.Contains(stderr, "geheim") {
		t.Errorf("%d %q", code, stderr)
	}
}

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestNodesAreMarkedForAModeFromTheCommandLine(t *testing.T) {
	t.Parallel()
	nodes := testenv.Redis(t, 1)
	flags := []string{"--redis", nodes.Addrs[0], "--redis-prefix", nodes.Prefix}
	run := func(args ...string) (int, string) {
		t.Helper()
		code, out, stderr := cli(t, nil, append(append([]string{"nodes"}, args...), flags...)...)
		return code, out + stderr
	}
	if code, said := run("mode", "best-effort"); code != exitUnavailable || !strings.Contains(said, "no node was admitted yet") {
		t.Errorf("new nodes: %d %q", code, said)
	}
	l, err := lock.New(lock.Config{Nodes: []lock.Node{{Addr: nodes.Addrs[0]}}, KeyPrefix: lock.Prefix(nodes.Prefix), NodeTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := l.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, said := run("status"); code != exitOK || !strings.Contains(said, `"best_effort": false`) {
		t.Errorf("before: %d %q", code, said)
	}
	if code, said := run("mode", "loose"); code != exitUsage {
		t.Errorf("another word: %d %q", code, said)
	}
	for mode, shown := range map[string]string{"best-effort": `"best_effort": true`, "strict": `"best_effort": false`} {
		if code, said := run("mode", mode); code != exitOK || !strings.Contains(said, "marked "+mode) {
			t.Errorf("%s: %d %q", mode, code, said)
		}
		if code, said := run("status"); code == exitUsage || !strings.Contains(said, shown) {
			t.Errorf("%s: %d %q", mode, code, said)
		}
	}
}

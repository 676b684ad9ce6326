package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/testenv"
)

// A replaced password is used from the next login on.
func TestTheFileWithTheRedisPasswordIsReadAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	n := nodeAt("r1:6379", "lockers", "first", file)
	for _, want := range []string{"first", "second"} {
		if err := os.WriteFile(file, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if user, password, err := n.Login(); err != nil || user != "lockers" || password != want {
			t.Errorf("%q, %q, %v; want the password %q", user, password, err, want)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, password, err := n.Login(); err == nil || password != "" {
		t.Errorf("without the file: %q, %v", password, err)
	}
}

func TestAMissingRedisPasswordIsSaidSo(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, 1)[0]
	c := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = c.Close() })
	if err := c.ConfigSet(t.Context(), "requirepass", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	args := []string{"nodes", "status", "--redis", server.Addr, "--redis-prefix", "p"}
	code, _, stderr := cli(t, nil, args...)
	if code != exitUnavailable || !strings.Contains(stderr, "hint: the node needs a password: give it with --redis-password-file or FENCEGATE_REDIS_PASSWORD") {
		t.Errorf("without: %d %q", code, stderr)
	}
	if _, _, stderr := cli(t, map[string]string{redisPasswordVariable: "secret"}, args...); strings.Contains(stderr, "password") {
		t.Errorf("with it: %q", stderr)
	}
}

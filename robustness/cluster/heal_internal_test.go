package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A server of net/http recovers the panics of its handlers, and its log line may have any level.
func TestAPanicInALogIsFound(t *testing.T) {
	t.Parallel()
	faulty := []string{
		"panic: runtime error: index out of range [1] with length 1",
		`time=2026-01-02T03:04:05.678Z level=ERROR msg="s3: a panic in a handler" error="invalid memory address"`,
		`time=2026-01-02T03:04:05.678Z level=WARN msg="http: panic serving 127.0.0.1:5032: boom\ngoroutine 7 [running]:\n"`,
		`2026/01/02 03:04:05 http2: panic serving 127.0.0.1:5032: boom`,
	}
	sound := []string{
		`time=2026-01-02T03:04:05.678Z level=INFO msg="the gateway is ready"`,
		`time=2026-01-02T03:04:05.678Z level=WARN msg="http: TLS handshake error from 127.0.0.1:5032: EOF"`,
	}
	log := filepath.Join(t.TempDir(), "log")
	text := ""
	var want []string
	for i, line := range faulty {
		text += sound[i%len(sound)] + "\n" + line + "\n"
		want = append(want, log+": "+line)
	}
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &Cluster{scanned: map[string]int{}}
	if found, err := c.scan(log, fatal); err != nil || !slices.Equal(found, want) {
		t.Errorf("found %q, %v", found, err)
	}
	if found, err := c.scan(log, fatal); err != nil || len(found) > 0 {
		t.Errorf("found again %q, %v", found, err)
	}
	// An incomplete line is for the next call, also where the rest of the log is not read again.
	if err := os.WriteFile(log, []byte(strings.Repeat("x", len(text))+"panic: "), 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := c.scan(log, fatal); err != nil || len(found) > 0 {
		t.Errorf("found %q in half a line, %v", found, err)
	}
}

//go:build unix

package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
)

// over is a gateway whose lease of r is lost at the first renewal, with this answer.
func over(t *testing.T, ttl time.Duration, answer string) (url string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/leases", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"resource":"r","token":"7","grant":"7.0123456789abcdef0123456789abcdef","handle":"h","ttl_ms":%d,"valid_ms":%[1]d}`, ttl.Milliseconds())
	})
	mux.HandleFunc("/v1/leases/renew", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusGone)
		_, _ = w.Write([]byte(answer))
	})
	mux.HandleFunc("/v1/leases/release", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/v1/endpoints", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func TestRunSaysWhyItsLeaseWasLostAndHowTheCommandEnded(t *testing.T) {
	t.Parallel()
	const raised, standing = "the fence refuses its writes since then", "its writes are refused once another holds the resource"
	for name, tc := range map[string]struct {
		answer, script, end, why, hint string
	}{
		"revoked":             {`{"code":"lease_lost","detail":"the lease is lost: its resource was revoked","recorded":"8","status":410}`, "exec sleep 60", "ended the command with TERM", "its resource was revoked", raised},
		"revoked, no hurry":   {`{"code":"lease_lost","detail":"the lease is lost: its resource was revoked","recorded":"8","status":410}`, "trap '' TERM; while :; do sleep 0.05; done", "ended the command with KILL", "its resource was revoked", raised},
		"revoked, then ended": {`{"code":"lease_lost","detail":"the lease is lost: its resource was revoked","recorded":"8","status":410}`, "exit 3", "the command had ended by itself, with exit code 3", "its resource was revoked", raised},
		"a gateway of before": {`{"code":"lease_lost","detail":"the lease is lost","status":410}`, "exec sleep 60", "ended the command with TERM", "the gateway does not say why", standing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The command must start before a third of the TTL, and may have a quarter of it to end.
			testenv.Paced(t, 1500*time.Millisecond, func(ttl time.Duration) error {
				cmd := command(t, t.TempDir(), "run", "--gateway", over(t, ttl, tc.answer), "--resource", "r", "--ttl", ttl.String(), "--", "sh", "-c", tc.script)
				var stderr strings.Builder
				cmd.Stderr = &stderr
				_ = cmd.Run()
				want := `fencegate: lost the lease on "r" (token 7): ` + tc.why + "; " + tc.end + "\nhint: " + tc.hint
				if got := stderr.String(); cmd.ProcessState.ExitCode() != exitLost || !strings.Contains(got, want) {
					return fmt.Errorf("exit code %d, want %d and %q in:\n%s", cmd.ProcessState.ExitCode(), exitLost, want, got)
				}
				return nil
			})
		})
	}
}

// When `run` resumes, both the lease and the command have ended. In
// either order, the message says that the command had ended by itself.
func TestARunThatWasStoppedPastItsLeaseSaysThatTheCommandHadEnded(t *testing.T) {
	t.Parallel()
	const ranOut = `{"code":"lease_lost","detail":"the lease is lost: it ran out","status":410}`
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			testenv.Paced(t, 1500*time.Millisecond, func(ttl time.Duration) error {
				dir := t.TempDir()
				cmd := command(t, dir, "run", "--gateway", over(t, ttl, ranOut), "--resource", "r", "--ttl", ttl.String(), "--", "sh", "-c", "kill -STOP $PPID; >stopped")
				var stderr strings.Builder
				cmd.Dir, cmd.Stderr = dir, &stderr
				ended := started(t, cmd)
				testenv.Eventually(t, "the command stops it, or comes too late for that", func() bool {
					_, err := os.Stat(filepath.Join(dir, "stopped"))
					return err == nil || ended()
				})
				if ended() {
					return errors.New("it was not stopped")
				}
				<-time.After(ttl + 100*time.Millisecond) // past the lease's deadline
				if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				testenv.Eventually(t, "it ends", ended)
				if got := stderr.String(); cmd.ProcessState.ExitCode() != exitLost || !strings.Contains(got, "the command had ended by itself, with exit code 0") {
					return fmt.Errorf("exit code %d, %s", cmd.ProcessState.ExitCode(), got)
				}
				return nil
			})
		})
	}
}

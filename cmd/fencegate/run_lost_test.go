package main

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// losing is a gateway whose lease of r is lost when end is called: renewals then get this answer. valid is what it says is
// left of the TTL whenever it grants or renews.
func losing(t *testing.T, ttl, valid time.Duration, answer string) (url string, end func()) {
	t.Helper()
	var over atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/leases", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"resource":"r","token":"7","grant":"7.0123456789abcdef0123456789abcdef","handle":"h","ttl_ms":%d,"valid_ms":%d}`, ttl.Milliseconds(), valid.Milliseconds())
	})
	mux.HandleFunc("/v1/leases/renew", func(w http.ResponseWriter, _ *http.Request) {
		if over.Load() {
			w.WriteHeader(http.StatusGone)
			_, _ = w.Write([]byte(answer))
			return
		}
		_, _ = fmt.Fprintf(w, `{"valid_ms":%d}`, valid.Milliseconds())
	})
	mux.HandleFunc("/v1/leases/release", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/v1/endpoints", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, func() { over.Store(true) }
}

// brief is a losing gateway that says that a third of the lease is almost over: a run renews it after a second, and then
// each twelfth of the TTL. So it hears of the loss soon, with most of the lease's time left.
func brief(t *testing.T, answer string) (url string, end func()) {
	t.Helper()
	const ttl = 20 * time.Second
	return losing(t, ttl, ttl*2/3+time.Second, answer)
}

const revoked = `{"code":"lease_lost","detail":"the lease is lost: its resource was revoked","recorded":"8","status":410}`

func TestRunSaysWhyItsLeaseWasLostAndHowTheCommandEnded(t *testing.T) {
	t.Parallel()
	const raised, standing = "the fence refuses its writes since then", "its writes are refused once another holds the resource"
	for name, tc := range map[string]struct {
		answer, script, end, why, hint string
	}{
		"revoked":             {revoked, "echo ready; exec sleep 60", "ended the command with TERM", "its resource was revoked", raised},
		"revoked, no hurry":   {revoked, "trap '' TERM; echo ready; while :; do sleep 0.05; done", "ended the command with KILL", "its resource was revoked", raised},
		"a gateway of before": {`{"code":"lease_lost","detail":"the lease is lost","status":410}`, "echo ready; exec sleep 60", "ended the command with TERM", "the gateway does not say why", standing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, end := brief(t, tc.answer)
			cmd := command(t, t.TempDir(), "run", "--gateway", url, "--resource", "r", "--ttl", "20s", "--", "sh", "-c", tc.script)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Errorf("%q, %v", line, err)
			}
			end()
			_ = cmd.Wait()
			want := `fencegate: lost the lease on "r" (token 7): ` + tc.why + "; " + tc.end + "\nhint: " + tc.hint
			if got := stderr.String(); cmd.ProcessState.ExitCode() != exitLost || !strings.Contains(got, want) {
				t.Errorf("exit code %d, want %d and %q in:\n%s", cmd.ProcessState.ExitCode(), exitLost, want, got)
			}
		})
	}
}

// So it is also for a run that was stopped past its lease, and finds both ended: see internal/runner.
func TestRunSaysThatItsCommandHadEndedWhenTheLeaseWasLost(t *testing.T) {
	t.Parallel()
	url, end := losing(t, time.Minute, time.Minute, revoked)
	end()
	cmd := command(t, t.TempDir(), "run", "--gateway", url, "--resource", "r", "--ttl", "1m", "--", "sh", "-c", "exit 3")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	_ = cmd.Run()
	const want = `fencegate: lost the lease on "r" (token 7): its resource was revoked; the command had ended by itself, with exit code 3`
	if got := stderr.String(); cmd.ProcessState.ExitCode() != exitLost || !strings.Contains(got, want) {
		t.Errorf("exit code %d, want %d and %q in:\n%s", cmd.ProcessState.ExitCode(), exitLost, want, got)
	}
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/runner"
	"github.com/fencegate/fencegate/internal/testenv"
)

// The command's processes end even if `run` is killed, and their settings are removed.
func TestNothingGoesOnWhenRunIsKilled(t *testing.T) {
	t.Parallel()
	url, _, renewed := leasingGateway(t, 0)
	tmp := t.TempDir()
	cmd := command(t, tmp, "run", "--gateway", url, "--resource", "r", "--ttl", "12s", "--", "sh", "-c",
		"trap '' TERM; sh -c \"trap '' TERM; echo \\$\\$; while :; do sleep 0.1; done\" & wait")
	cmd.Stderr = nil // otherwise Wait would wait for the command's processes
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	grandchild, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	<-renewed // now `run` watches its command
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	t.Cleanup(func() { _ = syscall.Kill(grandchild, syscall.SIGKILL) })
	testenv.Eventually(t, "what the command started has ended", func() bool { return ended(grandchild) })
	wantEmpty(t, tmp)
}

// ended reports whether a process has ended; it may be a zombie.
func ended(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

// leasingGateway starts a gateway that gives a lease, except the first held times, when another holds it, and never several.
// It reports each renewal.
func leasingGateway(t *testing.T, held int32) (url string, given *atomic.Int32, renewed chan struct{}) {
	t.Helper()
	var asked atomic.Int32
	given, renewed = new(atomic.Int32), make(chan struct{}, 100)
	mux := http.NewServeMux()
	asksFor := func(r *http.Request) int64 { // the TTL in milliseconds
		var body struct{ TTL string }
		_ = json.NewDecoder(r.Body).Decode(&body)
		ttl, err := time.ParseDuration(body.TTL)
		if err != nil {
			t.Errorf("the TTL: %v", err)
		}
		return ttl.Milliseconds()
	}
	mux.HandleFunc("/v1/leases", func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) <= held {
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write([]byte(`{"code":"held","detail":"r is held by web-1","status":409}`))
			return
		}
		n := given.Add(1)
		_, _ = fmt.Fprintf(w, `{"resource":"r","token":"%d","grant":"%[1]d.0123456789abcdef0123456789abcdef","handle":"h","ttl_ms":%d,"valid_ms":%[2]d}`, n, asksFor(r))
	})
	mux.HandleFunc("/v1/leases/all", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"code":"held","detail":"r is held by web-1","status":409}`))
	})
	mux.HandleFunc("/v1/leases/renew", func(w http.ResponseWriter, r *http.Request) {
		renewed <- struct{}{}
		_, _ = fmt.Fprintf(w, `{"valid_ms":%d}`, asksFor(r))
	})
	mux.HandleFunc("/v1/leases/release", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/v1/endpoints", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, given, renewed
}

func TestOnHeld(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		flags []string
		code  int
		runs  int32
	}{
		"fail is the default":            {code: exitHeld},
		"skip":                           {flags: []string{"--on-held", "skip"}},
		"wait":                           {flags: []string{"--on-held=wait"}, code: 3, runs: 1},
		"wait, and a wait":               {flags: []string{"--on-held=wait", "--wait=1m"}, code: exitUsage},
		"forever, and a wait":            {flags: []string{"--forever", "--wait=1m"}, code: exitUsage},
		"what is none":                   {flags: []string{"--on-held=queue"}, code: exitUsage},
		"flags of the command need none": {flags: []string{"--on-held=wait", "sh", "-c", "exit 4"}, code: 4, runs: 1},
		"fail, of several":               {flags: []string{"--resource=s"}, code: exitHeld},
		"skip, of several":               {flags: []string{"--resource=s", "--on-held=skip"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, given, _ := leasingGateway(t, 1)
			args := append([]string{"run", "--gateway", url, "--resource", "r"}, tc.flags...)
			if !strings.Contains(strings.Join(args, " "), " sh ") {
				args = append(args, "--", "sh", "-c", "exit 3")
			}
			cmd := command(t, t.TempDir(), args...)
			_ = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != tc.code || given.Load() != tc.runs {
				t.Errorf("exit code %d after %d leases, want %d after %d", got, given.Load(), tc.code, tc.runs)
			}
		})
	}
}

func TestRunTellsItsOutcomeAsJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flag, want string
		code       int
	}{
		{"--on-held=skip", `"outcome":"skipped"`, exitOK},
		{"--on-held=wait", `"outcome":"done"`, exitOK},
		{"--on-held=fail", `"outcome":"not started"`, exitHeld},
		{"--ttl=1ms", `"outcome":"not started"`, exitUsage},
		{"--gateway=nonsense", `"hint":"--gateway or FENCEGATE_GATEWAY`, exitUsage},
	} {
		want, flags := c.want, []string{c.flag}
		url, _, _ := leasingGateway(t, 1)
		cmd := command(t, t.TempDir(), append(append([]string{"run", "--json", "--gateway", url, "--resource", "r"}, flags...), "--", "true")...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != c.code {
			t.Errorf("%s: exit code %d, want %d: %s", c.flag, got, c.code, stderr.String())
		}
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		for _, line := range lines {
			if !json.Valid([]byte(line)) {
				t.Errorf("no JSON: %s", line)
			}
		}
		if !strings.Contains(lines[len(lines)-1], want) {
			t.Errorf("want %s in %s", want, stderr.String())
		}
	}
}

func TestAnInterruptedWaitIsToldAsJSON(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the end of the connection is not noticed
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	for _, flag := range []string{"--wait=1m", "--on-held=wait", "--forever"} {
		cmd := command(t, t.TempDir(), "run", "--json", "--gateway", server.URL, "--resource", "r", flag, "--", "true")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-asked
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		for _, line := range lines {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: no JSON: %s", flag, line)
			}
		}
		if got := cmd.ProcessState.ExitCode(); got != exitInterrupted || !strings.Contains(lines[len(lines)-1], `"cause":"interrupted"`) {
			t.Errorf("%s: exit code %d, want %d: %s", flag, got, exitInterrupted, stderr.String())
		}
	}
}

func TestForeverRunsAgainUntilItIsTold(t *testing.T) {
	t.Parallel()
	url, given, _ := leasingGateway(t, 1)
	cmd := command(t, t.TempDir(), "run", "--forever", "--gateway", url, "--resource", "r", "--", "sh", "-c", `[ "${FENCE_TOKEN%%.*}" -lt 3 ] || { trap 'exit 0' TERM; echo third; while :; do sleep 0.1; done; }`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "third\n" {
		t.Errorf("got %q, %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || given.Load() != 3 {
		t.Errorf("%v after %d leases, want 3", err, given.Load())
	}
}

// unready is a gateway that answers that it can't serve now, and records when it is asked.
type unready struct {
	began time.Time
	asked []time.Duration // since then
}

func (u *unready) RoundTrip(r *http.Request) (*http.Response, error) {
	u.asked = append(u.asked, time.Since(u.began))
	body := io.NopCloser(strings.NewReader(`{"code":"unavailable","detail":"no quorum","status":503}`))
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: body, Request: r}, nil
}

// The outcome of the run before was said when it ended.
func TestAStopBetweenTwoRunsIsNoFailureOfTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const s = time.Second
		gateway := &unready{began: time.Now()}
		c, err := client.New(client.Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: gateway}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 80*s)
		defer stop()
		o := &runFlags{resources: []string{"r"}}
		err = o.again(ctx, runner.Config{
			Client: c, Acquire: client.AcquireRequest{Resource: "r", TTL: 30 * s}, Command: []string{"true"}, Environ: []string{"PATH=/usr/bin:/bin"}, Say: t.Logf,
		}, io.Discard)
		if code := report(io.Discard, "run", err); code != exitInterrupted || time.Since(gateway.began) != 80*s {
			t.Errorf("exit code %d after %v: %v", code, time.Since(gateway.began), err)
		}
		if want := []time.Duration{0, 1 * s, 3 * s, 7 * s, 15 * s, 31 * s, 61 * s}; !slices.Equal(gateway.asked, want) {
			t.Errorf("ran at %v, want %v: each rest is longer, up to 30 s", gateway.asked, want)
		}
	})
}

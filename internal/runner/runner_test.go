package runner_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/runner"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const presented = "34.0123456789abcdef0123456789abcdef"

// gateway answers the HTTP API from memory. renew decides the outcome of renewals.
type gateway struct {
	ttl      time.Duration
	valid    time.Duration // time left when it is granted; 0: all
	renew    func(w http.ResponseWriter, n int32)
	release  func()
	renewals atomic.Int32
	acquired atomic.Int32
	released atomic.Int32
	portless bool // no PostgreSQL port, no S3 port
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	switch r.URL.Path {
	case "/v1/endpoints":
		if g.portless {
			reply(map[string]any{})
			return
		}
		reply(map[string]any{
			"pg": map[string]any{"host": "127.0.0.1", "port": 7432, "database": "app"},
			"s3": map[string]any{"url": "http://127.0.0.1:7480", "region": "us-east-1"},
		})
	case "/v1/leases":
		g.acquired.Add(1)
		reply(map[string]any{"resource": "orders/10 01", "token": "34", "grant": presented, "handle": "h", "ttl_ms": g.ttl.Milliseconds(), "valid_ms": cmp.Or(g.valid, g.ttl).Milliseconds()})
	case "/v1/leases/credentials":
		reply(map[string]any{"access_key_id": "ASIA1", "secret_access_key": "s", "session_token": "t", "endpoint_url": "http://127.0.0.1:7480", "region": "us-east-1"})
	case "/v1/leases/release":
		g.released.Add(1)
		if g.release != nil {
			g.release()
		}
		w.WriteHeader(http.StatusNoContent)
	case "/v1/leases/renew":
		n := g.renewals.Add(1)
		if g.renew != nil {
			g.renew(w, n)
			return
		}
		reply(map[string]any{"valid_ms": g.ttl.Milliseconds()})
	}
}

func lost(w http.ResponseWriter, _ int32) {
	w.WriteHeader(http.StatusGone)
	_, _ = fmt.Fprint(w, `{"code":"lease_lost","detail":"the lease is over","status":410}`)
}

func unavailable(w http.ResponseWriter, _ int32) {
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = fmt.Fprint(w, `{"code":"unavailable","detail":"no quorum of Redis","status":503}`)
}

type outcome struct {
	runner.Result
	stdout, said string
	took         time.Duration
}

func run(t *testing.T, g *gateway, onLost runner.OnLost, script string, inherited ...string) outcome {
	t.Helper()
	server := httptest.NewServer(g)
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL, HTTPClient: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	var mu sync.Mutex
	var said strings.Builder
	begin := time.Now()
	result, err := runner.Run(t.Context(), runner.Config{
		Client:  c,
		Acquire: client.AcquireRequest{Resource: "orders/10 01", TTL: g.ttl},
		Command: []string{"sh", "-c", script},
		Environ: append(inherited, // of two, the first is found
			"PATH=/usr/bin:/bin", "PGOPTIONS=-c statement_timeout=5s", "PGHOSTADDR=192.0.2.1", "PGSERVICE=around",
			"AWS_PROFILE=around", "AWS_DEFAULT_PROFILE=around", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=around", "AWS_ACCESS_KEY_ID=old",
		),
		OnLost: onLost,
		Stdout: &stdout, Stderr: &stdout,
		Say: func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			_, _ = fmt.Fprintf(&said, format+"\n", args...)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return outcome{Result: result, stdout: stdout.String(), said: said.String(), took: time.Since(begin)}
}

func TestTheCommandFindsItsGrantInTheEnvironment(t *testing.T) {
	t.Parallel()
	g := &gateway{ttl: time.Minute}
	got := run(t, g, runner.Kill, "env")
	for _, want := range []string{
		"FENCE_RESOURCE=orders/10 01\n", "FENCE_NONCE=", "FENCE_TOKEN=" + presented + "\n",
		"PGHOST=127.0.0.1\n", "PGPORT=7432\n", "PGDATABASE=app\n",
		"PGOPTIONS=-c statement_timeout=5s -c fence.resource=orders/10%2001 -c fence.token=" + presented + "\n",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:", "AWS_CONTAINER_AUTHORIZATION_TOKEN=", "AWS_REGION=us-east-1\n",
		"AWS_SHARED_CREDENTIALS_FILE=/dev/null\n", "AWS_CONFIG_FILE=/", "JDBC_URL=jdbc:postgresql://127.0.0.1:7432/app?options=",
		"AWS_ENDPOINT_URL_S3=http://127.0.0.1:7480\n", "S3CMD_CONFIG=/",
		"RCLONE_CONFIG_FENCEGATE_TYPE=s3\n", "RCLONE_CONFIG_FENCEGATE_ENV_AUTH=true\n", "RCLONE_CONFIG_FENCEGATE_ENDPOINT=http://127.0.0.1:7480\n",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is missing in:\n%s", want, got.stdout)
		}
	}
	for _, name := range []string{"AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_ACCESS_KEY_ID", "PGHOSTADDR", "PGSERVICE"} {
		if strings.Contains(got.stdout, name+"=") {
			t.Errorf("%s is left, which leads past the gateway:\n%s", name, got.stdout)
		}
	}
	if strings.Contains(got.stdout, "=old") {
		t.Errorf("other credentials are left:\n%s", got.stdout)
	}
	if got.ExitCode != 0 || got.Lost != nil || g.released.Load() != 1 {
		t.Errorf("got %+v and %d releases, want success and one release", got.Result, g.released.Load())
	}
	if strings.Contains(got.said, presented[3:]) {
		t.Error("the seal was printed")
	}
}

func TestTheExitCodeIsPassedOn(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 7": 7, "kill -KILL $$": 137} {
		if got := run(t, &gateway{ttl: time.Minute}, runner.Kill, script); got.ExitCode != want || got.Ended {
			t.Errorf("%q: got %+v, want exit code %d", script, got.Result, want)
		}
	}
}

func TestTheLeaseIsRenewedWhileTheCommandRuns(t *testing.T) {
	t.Parallel()
	// The command runs until the fourth renewal, longer than the lease would last without one.
	renewed := filepath.Join(t.TempDir(), "renewed")
	g := &gateway{ttl: 6 * time.Second}
	g.renew = func(w http.ResponseWriter, n int32) {
		if n == 4 {
			if err := os.WriteFile(renewed, nil, 0o600); err != nil {
				t.Error(err)
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"valid_ms": g.ttl.Milliseconds()})
	}
	got := run(t, g, runner.Kill, "while ! test -e '"+renewed+"'; do sleep 0.05; done")
	if got.ExitCode != 0 || got.Ended || got.took < g.ttl {
		t.Errorf("got %+v after %s and %d renewals, want an undisturbed command", got.Result, got.took, g.renewals.Load())
	}
}

// busy is how late a process may end on a busy machine.
// TestTheCommandIsKilledBeforeItsLeaseIsOver covers when it is signalled.
const busy = 10 * time.Second

func TestACommandWhoseLeaseCannotBeRenewedEnds(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"obeys TERM":         "exec sleep 30",
		"ignores TERM":       "trap '' TERM; while :; do sleep 0.05; done",
		"has a child of its": "trap '' TERM; sh -c \"trap '' TERM; while :; do sleep 0.05; done\"",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 4 * time.Second
			got := run(t, &gateway{ttl: ttl, renew: unavailable}, runner.Kill, script)
			if got.Lost == nil || !got.Ended || got.ExitCode == 0 || got.took >= ttl+busy {
				t.Errorf("got %+v after %s, want it ended by %s", got.Result, got.took, ttl)
			}
			if !strings.Contains(got.said, "no quorum of Redis") {
				t.Errorf("the cause is not said: %q", got.said)
			}
		})
	}
}

func TestACommandIsEndedAtOnceWhenItsLeaseIsAnothers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		code   int
		within time.Duration
	}{
		"obeys TERM":   {"trap 'echo cleaned; exit 3' TERM; while :; do sleep 0.05; done", 3, 2 * time.Second},
		"ignores TERM": {"trap '' TERM; while :; do sleep 0.05; done", 137, 3500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := run(t, &gateway{ttl: 6 * time.Second, renew: lost}, runner.Kill, c.script)
			var problem *client.Problem
			if !got.Ended || got.ExitCode != c.code || !errors.As(got.Lost, &problem) || got.took > c.within+busy {
				t.Errorf("got %+v after %s, want TERM at the first renewal, and KILL a quarter of the TTL later", got.Result, got.took)
			}
			if strings.Contains(got.stdout, "cleaned") != (c.code == 3) || !strings.Contains(got.said, "sent TERM") {
				t.Errorf("%q, said %q", got.stdout, got.said)
			}
		})
	}
}

func TestWarnLetsTheCommandRun(t *testing.T) {
	t.Parallel()
	// The loss is known after a third of the TTL.
	got := run(t, &gateway{ttl: 3 * time.Second, renew: lost}, runner.Warn, "sleep 4; echo done")
	if got.Ended || got.ExitCode != 0 || got.Lost == nil || !strings.Contains(got.stdout, "done") {
		t.Errorf("got %+v %q, want the command to end by itself", got.Result, got.stdout)
	}
	if strings.Count(got.said, "WARNING") != 1 {
		t.Errorf("want one warning: %q", got.said)
	}
}

func TestAnInterruptEndsTheCommandUnderItsLease(t *testing.T) {
	t.Parallel()
	g := &gateway{ttl: time.Minute}
	server := httptest.NewServer(g)
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL, HTTPClient: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready := writerFunc(func(b []byte) { cancel() })
	result, err := runner.Run(ctx, runner.Config{
		Client: c, Acquire: client.AcquireRequest{Resource: "r", TTL: g.ttl},
		Command: []string{"sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done"},
		Environ: []string{"PATH=/usr/bin:/bin"}, Stdout: ready, Say: func(string, ...any) {},
	})
	if err != nil || result.ExitCode != 3 || result.Ended || g.released.Load() != 1 {
		t.Errorf("got %+v, %v and %d releases, want exit code 3 and one release", result, err, g.released.Load())
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

func TestWhatTheCommandStartedEndsWithItsLease(t *testing.T) {
	t.Parallel()
	// The command obeys TERM. Its child ignores it, and holds the output open.
	const ttl = 4 * time.Second
	got := run(t, &gateway{ttl: ttl, renew: unavailable}, runner.Kill,
		`sh -c "trap '' TERM; while :; do sleep 0.05; done" & wait`)
	if !got.Ended || got.took >= ttl+busy {
		t.Errorf("got %+v after %s, want all of it ended by %s", got.Result, got.took, ttl)
	}
}

func TestTheSecondSignalKills(t *testing.T) {
	t.Parallel()
	g := &gateway{ttl: time.Minute}
	server := httptest.NewServer(g)
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL, HTTPClient: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	signals := make(chan os.Signal) // unbuffered: the second comes a second after the first was received
	ready := writerFunc(func([]byte) {
		signals <- os.Interrupt
		time.AfterFunc(time.Second, func() { signals <- os.Interrupt })
	})
	result, err := runner.Run(t.Context(), runner.Config{
		Client: c, Acquire: client.AcquireRequest{Resource: "r", TTL: g.ttl},
		Command: []string{"sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"},
		Environ: []string{"PATH=/usr/bin:/bin"}, Stdout: ready, Say: func(string, ...any) {}, Signals: signals,
	})
	if err != nil || result.ExitCode != 137 || g.released.Load() != 1 {
		t.Errorf("got %+v, %v and %d releases, want KILL and one release", result, err, g.released.Load())
	}
}

func TestACommandThatDoesNotExistTakesNoLease(t *testing.T) {
	t.Parallel()
	g := &gateway{ttl: time.Minute}
	server := httptest.NewServer(g)
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL, HTTPClient: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = runner.Run(t.Context(), runner.Config{
		Client: c, Acquire: client.AcquireRequest{Resource: "r", TTL: g.ttl},
		Command: []string{"no-such-command-here"}, Say: func(string, ...any) {},
	})
	if !errors.Is(err, fence.ErrInvalid) || g.acquired.Load() != 0 {
		t.Errorf("got %v and %d leases, want an input error and none", err, g.acquired.Load())
	}
}

// Versions of the AWS command line that read no endpoint from a variable also find the gateway. Their private
// configuration is removed with the command.
func TestTheAWSCommandLineIsLedToTheGateway(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&gateway{ttl: time.Minute})
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL, HTTPClient: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "it's here")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "aws"), []byte("#!/bin/sh\necho \"aws $*\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	const script = `aws s3 cp a s3://b/; aws --region x s3api list-buckets; aws s3 ls --endpoint-url http://other; aws s3 ls --endpoint-url=http://other; aws sts x
echo "$AWS_CONFIG_FILE"; cat "$AWS_CONFIG_FILE"`
	for _, kind := range []runner.Kind{runner.Refreshing, runner.Static} {
		var stdout bytes.Buffer
		_, err = runner.Run(t.Context(), runner.Config{
			Client: c, Acquire: client.AcquireRequest{Resource: "r", TTL: time.Minute}, Command: []string{"sh", "-c", script}, S3: runner.S3Access{Kind: kind},
			Environ: []string{"PATH=" + dir + ":/usr/bin:/bin", "AWS_CONFIG_FILE=/dev/null"}, Stdout: &stdout, Stderr: &stdout, Say: t.Logf,
		})
		if err != nil {
			t.Fatal(err)
		}
		const led = "aws --endpoint-url http://127.0.0.1:7480 "
		want := led + "s3 cp a s3://b/\n" + led + "--region x s3api list-buckets\naws s3 ls --endpoint-url http://other\naws s3 ls --endpoint-url=http://other\naws sts x\n"
		rest, ok := strings.CutPrefix(stdout.String(), want)
		file, config, _ := strings.Cut(rest, "\n")
		if kind == runner.Static {
			if file != "/dev/null" {
				t.Errorf("the command's own configuration is %q", file)
			}
		} else if !strings.Contains(config, "endpoint_url = http://127.0.0.1:7480\n") {
			t.Errorf("the configuration is %q", config)
		} else if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is left", file)
		}
		if !ok {
			t.Errorf("got %s", stdout.String())
		}
	}
}

// `run -- aws …` starts the wrapper too, which starts the real aws. A path names a file, and no wrapper of it.
func TestAnAWSCommandIsItselfTheWrapper(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	aws := filepath.Join(dir, "aws")
	if err := os.WriteFile(aws, []byte("#!/bin/sh\necho \"aws $*\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{"aws": "aws --endpoint-url http://127.0.0.1:7480 s3 ls\n", aws: "aws s3 ls\n"} {
		var stdout bytes.Buffer
		cfg := configure(t, &gateway{ttl: time.Minute}, "")
		cfg.Command, cfg.Environ, cfg.Stdout = []string{command, "s3", "ls"}, []string{"PATH=" + dir + ":/usr/bin:/bin"}, &stdout
		if got, err := runner.Run(t.Context(), cfg); err != nil || got.ExitCode != 0 || stdout.String() != want {
			t.Errorf("%s: %v, %+v, %q, want %q", command, err, got, stdout.String(), want)
		}
	}
}

// s3cmd gets a configuration from the run, which is removed afterwards. The endpoint applies to S3 only: a command that
// uses another service of AWS reaches that service.
func TestToolsFindTheGatewayForS3AndForNothingElse(t *testing.T) {
	t.Parallel()
	for _, kind := range []runner.Kind{runner.Refreshing, runner.Static} {
		server := httptest.NewServer(&gateway{ttl: time.Minute})
		defer server.Close()
		c, err := client.New(client.Config{URL: server.URL, HTTPClient: server.Client()})
		if err != nil {
			t.Fatal(err)
		}
		var stdout bytes.Buffer
		_, err = runner.Run(t.Context(), runner.Config{
			Client: c, Acquire: client.AcquireRequest{Resource: "r", TTL: time.Minute}, S3: runner.S3Access{Kind: kind},
			Command: []string{"sh", "-c", `echo "$S3CMD_CONFIG"; cat "$S3CMD_CONFIG" "$AWS_CONFIG_FILE"`},
			Environ: []string{"PATH=/usr/bin:/bin", "AWS_CONFIG_FILE=/dev/null", "S3CMD_CONFIG=/dev/null"}, Stdout: &stdout, Stderr: &stdout, Say: t.Logf,
		})
		if err != nil {
			t.Fatal(err)
		}
		file, text, _ := strings.Cut(stdout.String(), "\n")
		want := "[default]\nhost_base = 127.0.0.1:7480\nhost_bucket = 127.0.0.1:7480\nuse_https = false\nbucket_location = us-east-1\n"
		if kind == runner.Refreshing {
			want += "[default]\nregion = us-east-1\nservices = fencegate\ns3 =\n  addressing_style = path\n\n[services fencegate]\ns3 =\n  endpoint_url = http://127.0.0.1:7480\n"
		}
		if text != want {
			t.Errorf("the configurations are %q, want %q", text, want)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is left", file)
		}
	}
}

func TestURLsLeadToTheGateway(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&gateway{ttl: time.Minute})
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL, HTTPClient: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	cfg := runner.Config{
		Client: c, Acquire: client.AcquireRequest{Resource: "r", TTL: time.Minute}, Command: []string{"sh", "-c", `echo "$DATABASE_URL $REPORTS_URL"`},
		Environ: []string{"PATH=/usr/bin:/bin", "DATABASE_URL=postgres://u@db/shop"}, PGURLs: []string{"DATABASE_URL", "REPORTS_URL"}, Stdout: &stdout, Stderr: &stdout, Say: t.Logf,
	}
	if _, err := runner.Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	const options = "?options=-c%20fence.resource%3Dorders%2F10%252001%20-c%20fence.token%3D" + presented
	if want := "postgres://u@127.0.0.1:7432/shop" + options + " postgresql://127.0.0.1:7432/app" + options + "\n"; stdout.String() != want {
		t.Errorf("got %s, want %s", stdout.String(), want)
	}
	cfg.Environ[1] = "DATABASE_URL=host=db"
	if _, err := runner.Run(t.Context(), cfg); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("what is no URL: %v", err)
	}
}

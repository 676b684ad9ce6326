package main

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestUploadsAreStagedFromTheCommandLine(t *testing.T) {
	t.Parallel()
	var seen http.Header
	stale, during := false, func() {}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sum := md5.New()
		_, _ = io.Copy(sum, r.Body)
		during()
		if seen = r.Header; stale {
			w.WriteHeader(http.StatusPreconditionFailed)
			_, _ = io.WriteString(w, `<Error><Code>StaleFencingToken</Code><Message>stale fencing token 5</Message></Error>`)
			return
		}
		w.Header().Set("ETag", `"`+hex.EncodeToString(sum.Sum(nil))+`"`)
		w.Header().Set("Fencing-Stage", "the-id")
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "out.csv")
	if err := os.WriteFile(file, []byte("a,b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{"AWS_ENDPOINT_URL_S3": server.URL, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
	stage := func(vars map[string]string, args ...string) (string, error) {
		var out bytes.Buffer
		cmd := newObjectsStage(env{lookup: func(name string) (string, bool) { value, ok := vars[name]; return value, ok }})
		cmd.SetOut(&out)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	if out, err := stage(vars, "reports", "out.csv", file, "--content-type", "text/csv", "--if-none-match"); out != "the-id\n" || err != nil {
		t.Errorf("got %q, %v", out, err)
	}
	if seen.Get("Fencing-Stage") != "true" || seen.Get("Content-Type") != "text/csv" || seen.Get("If-None-Match") != "*" || seen.Get("X-Amz-Security-Token") != "c" {
		t.Errorf("sent %v", seen)
	}
	for name, c := range map[string]struct {
		vars map[string]string
		file string
		code int
	}{"no environment": {nil, file, exitUsage}, "a folder": {vars, t.TempDir(), exitUsage}, "a pipe": {vars, makePipe(t, filepath.Join(t.TempDir(), "pipe")), exitUsage}, "no file": {vars, file + "x", exitFailed}} {
		out, err := stage(c.vars, "reports", "out.csv", c.file)
		if code, _ := classify(err); err == nil || code != c.code {
			t.Errorf("%s: %v (%d), want exit code %d\n%s", name, err, code, c.code, out)
		}
	}
	during = func() { writeFile(t, file, "a,b\nc,d\n") }
	if out, err := stage(vars, "reports", "out.csv", file); out != "" || err == nil || !strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("a file that grew: %q, %v", out, err)
	}
	stale = true
	_, err := stage(vars, "reports", "out.csv", file)
	if code, _ := classify(err); code != 76 {
		t.Errorf("stale: %v (%d)", err, code)
	}
}

// cutting is an S3 port that reads requests whole, and closes their connections without an answer. One that dies does so
// once: then nobody is there.
func cutting(t *testing.T, dies bool) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if server, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && dies {
			_ = server.Close()
		}
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestAnUploadWhoseAnswerIsLostMayHaveBeenDone(t *testing.T) {
	t.Parallel()
	const nobody = "http://127.0.0.1:1"
	file := filepath.Join(t.TempDir(), "out.csv")
	writeFile(t, file, "a,b\n")
	for _, endpoint := range []string{nobody, cutting(t, false), cutting(t, true)} {
		code, stdout, stderr := cli(t, map[string]string{"AWS_ENDPOINT_URL_S3": endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "geheim"}, "objects", "stage", "orders", "1", file)
		if code != exitUnavailable || stdout != "" || strings.Contains(stderr, "geheim") {
			t.Errorf("%d %q, want %d", code, stderr, exitUnavailable)
		}
		for _, said := range []string{"outcome is unknown", "hint: the upload may have been done"} {
			if strings.Contains(stderr, said) != (endpoint != nobody) {
				t.Errorf("at %s: %q, want %q only if the request was sent", endpoint, stderr, said)
			}
		}
	}
}

// Under a run whose lease is over the S3 port refuses the last credentials. The command says so at once.
func TestAStageAfterItsLeaseSaysThatItIsOver(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out.csv")
	writeFile(t, file, "a,b\n")
	for _, c := range []struct {
		status, exit int
		code, hint   string
	}{
		{http.StatusBadRequest, exitLost, "ExpiredToken", leaseOver},
		{http.StatusPreconditionFailed, 76, "StaleFencingToken", "A newer holder has taken over"},
	} {
		var asked atomic.Int32
		mux := http.NewServeMux()
		mux.HandleFunc("/credentials", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"AccessKeyId":"a","SecretAccessKey":"b","Token":"c","Expiration":%q}`, time.Now().Add(10*time.Second).UTC().Format(time.RFC3339))
		})
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(c.status)
			_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>It is over.</Message></Error>", c.code)
		})
		server := httptest.NewServer(mux)
		defer server.Close()
		vars := map[string]string{"AWS_ENDPOINT_URL_S3": server.URL, "AWS_CONTAINER_CREDENTIALS_FULL_URI": server.URL + "/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "t"}
		code, _, stderr := cli(t, vars, "objects", "stage", "orders", "1", file)
		if code != c.exit || !strings.Contains(stderr, "hint: "+c.hint) {
			t.Errorf("%s: %d %q, want %d", c.code, code, stderr, c.exit)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("%s: %d requests", c.code, n)
		}
	}
}

func TestAFileThatIsRewrittenInPlaceIsNotUnchanged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report.pdf")
	writeFile(t, path, "old")
	f, opened, err := openRegular(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unchanged(f, opened); err != nil {
		t.Error(err)
	}
	writeFile(t, path, "new")
	if err := os.Chtimes(path, time.Time{}, opened.ModTime().Add(time.Millisecond)); err != nil { // the clock of files is coarse
		t.Fatal(err)
	}
	if err := unchanged(f, opened); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

func TestStagedUploadsAreListedFromTheCommandLine(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.GatewayURL}
	grant(t, pg.GatewayURL, "orders/1001", 5)
	data, id := blob.NewID().String(), blob.NewID().String()
	runSQL(t, pg.GatewayURL,
		"SELECT objects.create_bucket('orders', 1)",
		fmt.Sprintf("SELECT objects.begin_upload('%s', 'orders', '1001/x', 'orders/1001', 5, NULL)", data),
		fmt.Sprintf("SELECT objects.stage_upload('%s', 'orders', '1001/x', ARRAY['%s'::uuid], '{7}', 'e', '{}', 'orders/1001', 5, NULL, NULL, false, NULL)", id, data))
	if out, err := objectsCLI(t, vars, "staged", "orders", "1001/"); err != nil || !strings.Contains(out, `"1001/x"  `+id+`  7`) {
		t.Errorf("staged: %v\n%s", err, out)
	}
	if out, err := objectsCLI(t, vars, "staged", "orders", "--json"); err != nil || !strings.Contains(out, `"token": "5"`) || !strings.Contains(out, `"state": "staged"`) {
		t.Errorf("staged: %v\n%s", err, out)
	}
	if out, err := objectsCLI(t, vars, "staged", "orders", "--after", id); err != nil || strings.Contains(out, id) {
		t.Errorf("staged: %v\n%s", err, out)
	}
	if _, err := objectsCLI(t, vars, "staged", "nowhere"); err == nil {
		t.Error("a bucket that is not there was listed")
	}
}

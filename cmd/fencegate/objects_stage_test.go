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
	"testing"

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
	}{"no environment": {nil, file, exitUsage}, "a folder": {vars, t.TempDir(), exitUsage}, "no file": {vars, file + "x", exitFailed}} {
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
	for name, c := range map[string]struct {
		args   []string
		unsure []string // said if the request was sent
	}{
		"cp":        {[]string{"objects", "cp", file, "s3://orders/1"}, []string{"the upload to s3://orders/1 may have been done: ", "hint: ask with `fencegate objects audit orders 1`"}},
		"cp inside": {[]string{"objects", "cp", "s3://orders/2", "s3://orders/1"}, []string{"the copy to s3://orders/1 may have been done: ", "hint: ask with `fencegate objects audit orders 1`"}},
		"stage":     {[]string{"objects", "stage", "orders", "1", file}, []string{"outcome is unknown", "hint: the upload may have been done"}},
	} {
		for _, endpoint := range []string{nobody, cutting(t, false), cutting(t, true)} {
			code, stdout, stderr := cli(t, map[string]string{"AWS_ENDPOINT_URL_S3": endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "geheim"}, c.args...)
			if code != exitUnavailable || stdout != "" || strings.Contains(stderr, "geheim") {
				t.Errorf("%s: %d %q, want %d", name, code, stderr, exitUnavailable)
			}
			for _, said := range c.unsure {
				if strings.Contains(stderr, said) != (endpoint != nobody) {
					t.Errorf("%s at %s: %q, want %q only if the request was sent", name, endpoint, stderr, said)
				}
			}
		}
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

package runner_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/runner"
)

// set is a gateway that gives several leases at once. Their handles are the resources' names.
type set struct {
	mu              sync.Mutex
	asked, released []string
}

const seal = "0123456789abcdef0123456789abcdef"

func (s *set) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var body struct {
		Resources []string `json:"resources"`
		Handle    string   `json:"handle"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	reply := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	switch r.URL.Path {
	case "/v1/endpoints":
		reply(map[string]any{
			"pg": map[string]any{"host": "127.0.0.1", "port": 7432, "database": "app"},
			"s3": map[string]any{"url": "http://127.0.0.1:7480", "region": "us-east-1"},
		})
	case "/v1/leases/all":
		s.asked = body.Resources
		var all []map[string]any
		for i, name := range body.Resources {
			all = append(all, map[string]any{"resource": name, "token": fmt.Sprint(i + 1), "grant": fmt.Sprintf("%d.%s", i+1, seal), "handle": name, "ttl_ms": 60_000, "valid_ms": 60_000})
		}
		reply(map[string]any{"leases": all})
	case "/v1/leases/renew":
		reply(map[string]any{"valid_ms": 60_000})
	case "/v1/leases/release":
		s.released = append(s.released, body.Handle)
		w.WriteHeader(http.StatusNoContent)
	case "/v1/leases/credentials":
		reply(map[string]any{
			"access_key_id": "ASIA of " + body.Handle, "secret_access_key": "s", "session_token": "t", "valid_ms": 60_000,
			"endpoint_url": "http://127.0.0.1:7480", "region": "us-east-1",
		})
	default:
		w.WriteHeader(http.StatusTeapot)
	}
}

// runSet runs a command with these resources; inherited are further variables.
func runSet(t *testing.T, resources []string, inherited ...string) (s *set, out, said string) {
	t.Helper()
	return runSetWith(t, resources, runner.S3Access{}, inherited...)
}

// runSetWith is runSet with the given S3 access.
func runSetWith(t *testing.T, resources []string, access runner.S3Access, inherited ...string) (s *set, out, said string) {
	t.Helper()
	s = new(set)
	var stdout, messages strings.Builder
	result, err := runner.Run(t.Context(), runner.Config{
		Client: clientOf(t, s), Acquire: client.AcquireRequest{TTL: time.Minute}, Resources: resources, S3: access,
		Command: []string{"env"}, Environ: append([]string{"PATH=/usr/bin:/bin"}, inherited...), Stdout: &stdout,
		Say: func(format string, args ...any) { _, _ = fmt.Fprintf(&messages, format+"\n", args...) },
	})
	if err != nil || result.ExitCode != 0 || result.Lost != nil {
		t.Fatalf("%v, %+v", err, result)
	}
	return s, stdout.String(), messages.String()
}

func TestSeveralAreTakenInTheOrderOfTheirBytesAndAllReleased(t *testing.T) {
	t.Parallel()
	s, _, _ := runSet(t, []string{"b", "Z", "ä", "a"})
	order := []string{"Z", "a", "b", "ä"}
	if !slices.Equal(s.asked, order) {
		t.Errorf("asked for %q, want %q", s.asked, order)
	}
	if released := slices.Sorted(slices.Values(s.released)); !slices.Equal(released, order) {
		t.Errorf("released %q, want %q", released, order)
	}
}

func TestTheCommandFindsAllGrantsAndNoneOfAnOuterRun(t *testing.T) {
	t.Parallel()
	_, out, said := runSet(t, []string{"orders/10 01", "a"}, "FENCE_RESOURCE=outer", "FENCE_TOKEN=7."+seal,
		"PGOPTIONS=-c fence.resource=outer -c fence.token=7."+seal, "AWS_PROFILE=mine")
	grants := "a=1." + seal + ",orders/10%2001=2." + seal
	for _, want := range []string{
		"FENCE_GRANTS=" + grants + "\n", "PGHOST=127.0.0.1\n",
		" -c fence.resource= -c fence.token= -c fence.grants=" + grants + "\n",
		"JDBC_URL=jdbc:postgresql://127.0.0.1:7432/app?options=-c%20fence.grants%3Da%3D1.",
		"AWS_PROFILE=mine\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	for _, name := range []string{"FENCE_RESOURCE", "FENCE_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		if strings.Contains(out, "\n"+name+"=") {
			t.Errorf("%s is there:\n%s", name, out)
		}
	}
	if !strings.Contains(said, "no S3 credentials") || strings.Contains(said, seal) {
		t.Errorf("said %q", said)
	}
	if _, _, said = runSet(t, []string{"a", "b"}); said != "" {
		t.Errorf("said %q to a command without S3", said)
	}
	if _, _, said = runSet(t, []string{"a", "b"}, "AWS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"); said != "" {
		t.Errorf("said %q to a command with no credentials for S3", said)
	}
}

func TestOfSeveralTheCommandHasTheCredentialsOfTheChosenOne(t *testing.T) {
	t.Parallel()
	resources := []string{"a", "orders/10 01"}
	_, out, said := runSetWith(t, resources, runner.S3Access{Kind: runner.Static, Resource: "orders/10 01"}, "AWS_PROFILE=mine")
	for _, want := range []string{"AWS_ACCESS_KEY_ID=ASIA of orders/10 01\n", "AWS_ENDPOINT_URL_S3=http://127.0.0.1:7480\n", "FENCE_GRANTS=a=1." + seal + ","} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if strings.Contains(out, "AWS_PROFILE=") || strings.Contains(said, "no S3 credentials") {
		t.Errorf("another profile, or said %q:\n%s", said, out)
	}
	_, out, _ = runSetWith(t, resources, runner.S3Access{Resource: "a"})
	if !strings.Contains(out, "AWS_CONTAINER_CREDENTIALS_FULL_URI=") || strings.Contains(out, "AWS_ACCESS_KEY_ID=") {
		t.Errorf("no refreshing credentials in:\n%s", out)
	}
}

func TestARunOfOneInARunOfSeveralPresentsOne(t *testing.T) {
	t.Parallel()
	got := run(t, &gateway{ttl: time.Minute}, "exec env", "FENCE_GRANTS=a=1."+seal, "PGOPTIONS=-c fence.grants=a=1."+seal)
	if strings.Contains(got.stdout, "FENCE_GRANTS=") ||
		!strings.Contains(got.stdout, " -c fence.grants= -c fence.resource=orders/10%2001 -c fence.token="+presented+"\n") {
		t.Errorf("got\n%s", got.stdout)
	}
}

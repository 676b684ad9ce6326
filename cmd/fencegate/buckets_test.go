package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBucketsAreListedAsATable(t *testing.T) {
	t.Parallel()
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"buckets":[{"bucket":"orders","rule":"prefix:1","keep":"30d","write_once":"none","created_at":"2026-11-02T09:12:44Z","prefixes":[{"prefix":"tmp/","rule":"none"}]},
			{"bucket":"plain","rule":"none","keep":"none","write_once":"none","created_at":"2026-11-02T09:12:44Z","prefixes":[]}],"next":"plain"}`)
	}))
	t.Cleanup(gateway.Close)
	code, stdout, stderr := cli(t, nil, "buckets", "ls", "--gateway", gateway.URL)
	const want = "BUCKET  RULE      KEEP  WRITE ONCE  CREATED               RULES BELOW PREFIXES\n" +
		"orders  prefix:1  30d   none        2026-11-02T09:12:44Z  tmp/=none\nplain   none      none  none        2026-11-02T09:12:44Z  -\n"
	if code != exitOK || stdout != want || stderr != "there are more: --after \"plain\"\n" {
		t.Errorf("%d\n%s%s", code, stdout, stderr)
	}
}

func TestBucketsAreManagedByTheCommandLine(t *testing.T) {
	t.Parallel()
	var asked []string
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.Method+" "+r.URL.RequestURI()+" "+string(body))
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.Contains(r.URL.Path, "nowhere") {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"not_found","title":"Not found","status":404,"detail":"there is no bucket"}`)
			return
		}
		_, _ = io.WriteString(w, `{"bucket":"orders"}`)
	}))
	t.Cleanup(gateway.Close)
	vars := map[string]string{"FENCEGATE_GATEWAY": gateway.URL, "FENCEGATE_TOKEN": "secret"}
	var want []string
	for _, c := range []struct{ args, asks string }{
		{"ls --json", "GET /v1/buckets?limit=100 "},
		{"ls --after a --limit 5 --json", "GET /v1/buckets?after=a&limit=5 "},
		{"show orders", "GET /v1/buckets/orders "},
		{"set orders --rule prefix:1 --keep 30d", `PUT /v1/buckets/orders {"keep":"30d","rule":"prefix:1"}`},
		{"set orders --keep all", `PUT /v1/buckets/orders {"keep":"all"}`},
		{"set orders --write-once 90d", `PUT /v1/buckets/orders {"write_once":"90d"}`},
		{"rule orders a/?b none", `PUT /v1/buckets/orders/rules {"prefix":"a/?b","rule":"none"}`},
		{"drop-rule orders a/?b", "DELETE /v1/buckets/orders/rules?prefix=a%2F%3Fb "},
	} {
		want = append(want, c.asks)
		if code, stdout, stderr := cli(t, vars, append([]string{"buckets"}, strings.Fields(c.args)...)...); code != exitOK || !strings.Contains(stdout, `"bucket": "orders"`) {
			t.Errorf("%s: %d %q %q", c.args, code, stdout, stderr)
		}
	}
	if got := strings.Join(asked, "|"); got != strings.Join(want, "|") {
		t.Errorf("asked %s, want %s", got, strings.Join(want, "|"))
	}
	if code, _, stderr := cli(t, vars, "buckets", "show", "nowhere"); code == exitOK || !strings.Contains(stderr, "there is no bucket") {
		t.Errorf("one that is not there: %d %q", code, stderr)
	}
	for _, args := range []string{"show", "set orders", "rule orders a", "drop-rule orders", "ls x"} {
		if code, _, stderr := cli(t, vars, append([]string{"buckets"}, strings.Fields(args)...)...); code != exitUsage {
			t.Errorf("%s: %d %q", args, code, stderr)
		}
	}
	for _, args := range [][]string{{"show", ""}, {"rule", "orders", "", "none"}, {"drop-rule", "orders", ""}} {
		if code, _, stderr := cli(t, vars, append([]string{"buckets"}, args...)...); code != exitUsage || !strings.Contains(stderr, "is empty") {
			t.Errorf("%q: %d %q", args, code, stderr)
		}
	}
}

func TestFieldsOfTheGatewayHaveFlags(t *testing.T) {
	t.Parallel()
	var o serveFlags
	for field, flag := range map[string]string{
		"PostgresURL": "--postgres-url", "SQL URL": "--sql-url", "RedisNodes": "--redis", "nodes": "--redis nodes", "node timeout": "--node-timeout", "max ttl": "--max-ttl",
		"APIListen": "--api-listen", "PGListen": "--pg-listen", "S3Listen": "--s3-listen", "MetricsListen": "--metrics-listen", "prefixes": "--metrics-prefix",
		"SweepRecords": "--sweep-records", "PGTLSClientCA": "--pg-tls-client-ca", "S3TLSClientCA": "--s3-tls-client-ca", "APITLSCert": "--api-tls-cert",
		"APITLSClientCA": "--api-tls-client-ca", "PGTLSCert": "--pg-tls-cert", "S3TLSCert": "--s3-tls-cert", "S3.Domain": "--s3-domain", "PGAdvertise": "--pg-advertise",
		"S3Advertise": "--s3-advertise", "policy": "--pg-policy", "PG.policy": "--pg-policy (or its file)", "keyring": "--master-key-file",
		"SweepEvery": "", "S3.DatabaseTimeout": "",
	} {
		if got := o.table().Flag(field); got != flag {
			t.Errorf("field %s: %q, want %q", field, got, flag)
		}
	}
}

func TestServeRefusesWhatItsFlagsSayByTheirNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("k1:"+strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ flag, value, reason string }{
		{"--s3-tls-cert", key, "--s3-tls-cert and --s3-tls-key are needed together"},
		{"--s3-tls-client-ca", key, "--s3-tls-client-ca needs --s3-tls-cert"},
		{"--api-tls-key", key, "--api-tls-cert and --api-tls-key are needed together"},
		{"--api-tls-client-optional", "--pg-listen=", "--api-tls-client-optional needs --api-tls-client-ca"},
		{"--pg-tls-client-ca", key, "--pg-tls-client-ca needs --pg-tls-cert"},
		{"--s3-domain", "S3.Example.com", "--s3-domain is \"S3.Example.com\"; a lower-case"},
		{"--s3-domain", "s3.example.com:7480", "without a port"},
		{"--s3-max-connections", "0", "1 or more"},
		{"--s3-max-uploads", "-1", "1 or more"},
		{"--s3-max-requests", "x", "invalid"},
		{"--s3-stall-timeout", "0s", "more than 0"},
		{"--s3-header-timeout", "-1s", "more than 0"},
		{"--s3-upload-timeout", "soon", "soon"},
		{"--postgres-url", "nonsense://x", "--postgres-url is not a PostgreSQL address"},
		{"--api-listen", "nonsense", "--api-listen is \"nonsense\"; HOST:PORT is needed"},
		{"--s3-listen", "7480", "--s3-listen is \"7480\""},
		{"--redis", "redis1", "--redis has the address \"redis1\""},
		{"--redis", "127.0.0.1:2", "--redis nodes are two, which is not supported"}, // beside 127.0.0.1:1
		{"--redis", "PGListen", "--redis has the address \"PGListen\""},             // a value is not a field's name
		{"--s3-access-key", "admin", "--s3-access-key and --s3-secret-key-file are needed together"},
		{"--s3-secret-key-file", key, "--s3-access-key and --s3-secret-key-file are needed together"},
		{"--max-ttl", "-1s", "--max-ttl is negative"},
		{"--max-ttl", "48h", "--max-ttl is 48h0m0s; allowed is"},
		{"--node-timeout", "1us", "--node-timeout is 1µs; at least 1ms is needed"},
		{"--sweep-rate", "-1", "--sweep-rate is negative"},
		{"--sweep-grace", "-1h", "--sweep-grace is negative"},
		{"--pg-max-user-connections", "-1", "--pg-max-user-connections is negative"},
		{"--pg-idle-timeout", "-1s", "--pg-idle-timeout is negative"},
		{"--pg-policy", "nonsense", "--pg-policy "},
		{"--sql-url", "nonsense://x", "--sql-url is not a PostgreSQL address"},
		{"--master-key-file", empty, "--master-key-file is empty"},
		{"--pg-tls-cert=" + key, "--pg-tls-key=" + key, "--pg-tls-cert can't be used with its key and client CA"},
		{"--pg-listen=", "--pg-socket=" + dir + "/s", "--pg-socket needs --pg-listen"},
		{"--pg-listen=", "--pg-policy=*=open", "--pg-policy needs --pg-listen"},
		{"--blobs=", "--bucket=orders=key", "--bucket needs --blobs"},
		{"--bucket", "Orders_X=key", "--bucket \"Orders_X=key\": bucket is \"Orders_X\"; S3 wants"},
		{"--redis", "127.0.0.1:1", "--redis nodes name 127.0.0.1:1 twice"},
		{"--api-listen", "127.0.0.1:99999", "--api-listen is \"127.0.0.1:99999\"; the port must be 0 to 65535"},
		{"--api-listen=127.0.0.1:7070", "--metrics-listen=localhost:7070", "--metrics-listen is \"localhost:7070\"; the HTTP API listens there already"},
		{"--pg-listen=127.0.0.1:7070", "--s3-listen=:7070", "--s3-listen is \":7070\"; the PostgreSQL port listens there already"},
	} {
		for _, command := range [][]string{{"serve"}, {"config", "check"}} { // check says what serve would refuse
			code, _, stderr := cli(t, nil, append(command, "--postgres-url", "postgres://a@127.0.0.1:1/shop", "--redis", "127.0.0.1:1", "--master-key-file", key,
				"--blobs", dir, "--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0", c.flag, c.value)...)
			if code != exitUsage || !strings.Contains(stderr, c.reason) {
				t.Errorf("%s %s %s: %d %q; want %d and %q", command, c.flag, c.value, code, stderr, exitUsage, c.reason)
			}
		}
	}
}

package gateway_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestBucketsAreManagedOverHTTP(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	cfg.S3.RootAccessKey, cfg.S3.RootSecretKey = "root", "root-secret"
	c := start(t, cfg)
	for _, call := range []struct {
		method, path string
		body         map[string]string
		status       int
		want         string // in the answer
	}{
		{"GET", "/v1/buckets/orders", nil, 200, `"keep":"none","write_once":"none","prefixes":[]`},
		{"PUT", "/v1/buckets/orders", map[string]string{"keep": "30d"}, 200, `"keep":"720h0m0s"`},
		{"PUT", "/v1/buckets/orders", map[string]string{"keep": "3"}, 200, `"keep":"3"`},
		{"PUT", "/v1/buckets/orders", map[string]string{"keep": "never"}, 400, `"field":"keep"`},
		{"PUT", "/v1/buckets/orders", map[string]string{"write_once": "90d"}, 200, `"keep":"3","write_once":"2160h0m0s"`},
		{"PUT", "/v1/buckets/orders", map[string]string{"write_once": "none"}, 200, `"write_once":"none"`},
		{"PUT", "/v1/buckets/orders", map[string]string{"write_once": "for ever"}, 400, `"field":"write_once"`},
		{"PUT", "/v1/buckets/nowhere", map[string]string{"write_once": "90d"}, 404, `there is no bucket`},
		{"PUT", "/v1/buckets/nowhere", map[string]string{"keep": "3"}, 404, `there is no bucket`},
		{"PUT", "/v1/buckets/new", map[string]string{"rule": "prefix:0"}, 400, `"field":"rule"`},
		{"PUT", "/v1/buckets/new", map[string]string{"rule": "key", "keep": "x"}, 400, `"field":"keep"`},
		{"GET", "/v1/buckets/new", nil, 404, `there is no bucket`}, // the invalid requests created nothing
		{"PUT", "/v1/buckets/New", map[string]string{"rule": "key"}, 400, `"field":"bucket"`},
		{"PUT", "/v1/buckets/new", map[string]string{"rule": "monotone:prefix:2", "keep": "all"}, 201, `"rule":"monotone:prefix:2","keep":"all"`},
		{"PUT", "/v1/buckets/orders/rules", map[string]string{"prefix": "scratch/", "rule": "none"}, 200, `[{"prefix":"scratch/","rule":"none"}]`},
		{"PUT", "/v1/buckets/orders/rules", map[string]string{"prefix": "a", "rule": "monotone"}, 200, `[{"prefix":"a","rule":"monotone"},{"prefix":"scratch/","rule":"none"}]`},
		{"PUT", "/v1/buckets/orders/rules", map[string]string{"prefix": "", "rule": "none"}, 400, `"field":"prefix"`},
		{"PUT", "/v1/buckets/orders/rules", map[string]string{"prefix": "b", "rule": ""}, 400, `"field":"rule"`},
		{"PUT", "/v1/buckets/nowhere/rules", map[string]string{"prefix": "b", "rule": "none"}, 404, `there is no bucket`},
		{"DELETE", "/v1/buckets/orders/rules?prefix=a", nil, 200, `[{"prefix":"scratch/","rule":"none"}]`},
		{"DELETE", "/v1/buckets/nowhere/rules?prefix=a", nil, 404, `there is no bucket`},
		{"GET", "/v1/buckets?limit=1", nil, 200, `"next":"new"`},
		{"GET", "/v1/buckets?after=new", nil, 200, `"bucket":"orders"`},
	} {
		var body any
		if call.body != nil {
			body = call.body
		}
		if status, text := c.text(call.method, call.path, body); status != call.status || !strings.Contains(text, call.want) {
			t.Errorf("%s %s %v: %d %s, want %d %s", call.method, call.path, call.body, status, text, call.status, call.want)
		}
	}
	// The rule applies at once, and cannot change once objects are written under it.
	s3c := awss3.New(awss3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://" + c.g.Addrs().S3), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("root", "root-secret", ""), HTTPClient: c.http,
	})
	_, err := s3c.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: aws.String("orders"), Key: aws.String("scratch/x"), Body: strings.NewReader("x")})
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{
		c.do("DELETE", "/v1/buckets/orders/rules?prefix=scratch%2F", nil).Status,
		c.do("PUT", "/v1/buckets/orders/rules", map[string]string{"prefix": "scratch/", "rule": "key"}).Status,
		c.do("PUT", "/v1/buckets/orders", map[string]string{"rule": "key"}).Status,
	} {
		if status != http.StatusConflict {
			t.Errorf("a rule in use: got %d", status)
		}
	}
	c.wantMetrics(map[string]string{
		`fencegate_s3_requests_total{operation="PutObject",status="200"}`: "1",
		`fencegate_s3_first_byte_seconds_count{operation="PutObject"}`:    "1",
		`fencegate_s3_commit_seconds_count`:                               "1",
		`fencegate_s3_uploads_in_progress`:                                "0",
		`fencegate_s3_connections`:                                        "1",
	})
}

// text calls the API and returns the answer's text.
func (c *client) text(method, path string, body any) (int, string) {
	c.t.Helper()
	return c.raw(method, "http://"+c.g.Addrs().API+path, body)
}

func (c *client) wantMetrics(want map[string]string) {
	c.t.Helper()
	testenv.Eventually(c.t, "the metrics are right", func() error { // a request may be counted after its answer
		_, text := c.text("GET", "/metrics", nil)
		for name, value := range want {
			if !strings.Contains(text, "\n"+name+" "+value+"\n") {
				return fmt.Errorf("metrics lack %s %s:\n%s", name, value, filtered(text, "fencegate_s3"))
			}
		}
		return nil
	})
}

func filtered(text, part string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, part) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func TestTheHTTPPortsSpeakTLS(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	own := certs.New(certs.For("s3.test", "*.s3.test", "127.0.0.1"))
	cert, key := own.Files(t)
	cfg.APITLSCert, cfg.APITLSKey, cfg.S3TLSCert, cfg.S3TLSKey, cfg.S3.Domain = cert, key, cert, key, "s3.test"
	c := start(t, cfg)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: own.Pool()},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if strings.Contains(addr, "s3.test") {
				addr = c.g.Addrs().S3
			}
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	c.http = &http.Client{Transport: transport}
	status, text := c.raw("GET", "https://"+c.g.Addrs().API+"/v1/endpoints", nil)
	_, port, _ := net.SplitHostPort(c.g.Addrs().S3)
	if url := "https://s3.test:" + port; status != http.StatusOK || !strings.Contains(text, url) {
		t.Errorf("endpoints: %d %s, want %s", status, text, url)
	}
	// No credentials, but the request arrived.
	if status, _ := c.raw("GET", "https://orders.s3.test:"+port+"/", nil); status != http.StatusForbidden {
		t.Errorf("S3 by host: %d", status)
	}
	for _, addr := range []string{c.g.Addrs().API, c.g.Addrs().S3} {
		if status, text := c.raw("GET", "http://"+addr+"/healthz", nil); status != http.StatusBadRequest || !strings.Contains(text, "https://") {
			t.Errorf("plain HTTP: %d %s", status, text)
		}
	}
}

// raw calls a URL.
func (c *client) raw(method, url string, body any) (int, string) {
	c.t.Helper()
	var payload io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			c.t.Fatal(err)
		}
		payload = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, url, payload)
	if err != nil {
		c.t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func TestCertificatesOfPortsThatCannotBeUsedAreNamed(t *testing.T) {
	t.Parallel()
	cert, key := certs.New(certs.For("s3.test")).Files(t)
	base := gateway.Config{PostgresURL: "postgres://x@127.0.0.1:1/x", MasterKey: masterKey, RedisNodes: nil, S3Listen: "127.0.0.1:0", BlobDir: t.TempDir()}
	base.RedisNodes = append(base.RedisNodes, config(t, testenv.Postgres(t)).RedisNodes...)
	for field, change := range map[string]func(*gateway.Config){
		"S3TLSCert":     func(c *gateway.Config) { c.S3TLSCert = cert },
		"S3TLSClientCA": func(c *gateway.Config) { c.S3TLSClientCA = cert },
		"APITLSCert":    func(c *gateway.Config) { c.APITLSCert, c.APITLSKey = key, cert },
		"PGTLSCert":     func(c *gateway.Config) { c.PGTLSCert, c.PGTLSKey = cert, key },
		"S3.Domain":     func(c *gateway.Config) { c.S3.Domain = "S3.test:7480" },
	} {
		cfg := base
		change(&cfg)
		if _, err := gateway.New(cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

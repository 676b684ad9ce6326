//go:build unix

package s3_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awscreds "github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/tlsfiles"
)

// certify writes a new self-signed certificate for the name and its subdomains.
func certify(t *testing.T, files tlsfiles.Files, name string) *x509.Certificate {
	t.Helper()
	own := certs.New(certs.For(name, "*."+name, "127.0.0.1"))
	own.Write(t, files.Cert, files.Key)
	return own.TLS.Leaf
}

func filesIn(t *testing.T) tlsfiles.Files {
	t.Helper()
	dir := t.TempDir()
	return tlsfiles.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
}

// dialing returns an HTTP client that reaches the server under any host name.
func (w *world) dialing(trusted ...*x509.Certificate) *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, w.addr)
		},
		TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool()},
	}
	for _, cert := range trusted {
		transport.TLSClientConfig.RootCAs.AddCert(cert)
	}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// virtual returns an SDK client with default settings, which puts the bucket into the host name.
func (w *world) virtual(endpoint string, hc *http.Client, c credentials.Credentials) *awss3.Client {
	return awss3.New(awss3.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint, HTTPClient: hc, RetryMaxAttempts: 1,
		Credentials: awscreds.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, c.SessionToken),
	})
}

func TestBucketsAreReachedByHostToo(t *testing.T) {
	t.Parallel()
	files := filesIn(t)
	cert := certify(t, files, "s3.test")
	for _, scheme := range []string{"http", "https"} {
		w := setup(t, func(cfg *config) {
			cfg.Domain = "s3.test"
			if scheme == "http" {
				return
			}
			var err error
			if cfg.TLS, err = files.Load(tlsfiles.Use{Port: "the S3 port"}, cfg.Logger); err != nil {
				t.Fatal(err)
			}
		})
		bucket := w.bucket()
		hc := w.dialing(cert)
		w.arm("orders/1001", 5)
		c := w.virtual(scheme+"://s3.test:7480", hc, w.issue("orders/1001", 5))
		const awkward = "1001/ä ö+%41//x/"
		// Beyond MaxDocument: also an upload under this host.
		for key, size := range map[string]int{invoice: 5, awkward: 3 << 20} {
			put(t, c, bucket, key, strings.Repeat("x", size))
			if got := get(t, c, bucket, key); len(got) != size {
				t.Errorf("%s: %q: read %d bytes", scheme, key, len(got))
			}
			if acl, err := c.GetObjectAcl(t.Context(), &awss3.GetObjectAclInput{Bucket: &bucket, Key: &key}); err != nil || len(acl.Grants) != 1 {
				t.Errorf("%s: %q: ACL %+v, %v", scheme, key, acl, err)
			}
		}
		list, err := c.ListObjectsV2(t.Context(), &awss3.ListObjectsV2Input{Bucket: &bucket})
		if err != nil || len(list.Contents) != 2 || aws.ToString(list.Contents[1].Key) != awkward {
			t.Errorf("%s: list: %+v, %v", scheme, list, err)
		}
		_, err = tryPut(t, w.virtual(scheme+"://s3.test", hc, w.issue("orders/1001", 4)), bucket, invoice, "stale")
		wantRefused(t, err, 412, "StaleFencingToken")
		w.multipartByHost(c, bucket)
		w.presignedByHost(c, hc, bucket)
		buckets, err := c.ListBuckets(t.Context(), &awss3.ListBucketsInput{})
		if err != nil || len(buckets.Buckets) != 1 {
			t.Errorf("%s: buckets: %+v, %v", scheme, buckets, err)
		}
		root := w.virtual(scheme+"://s3.test", hc, credentials.Credentials{AccessKeyID: rootAccess, SecretAccessKey: rootSecret})
		if _, err := root.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: aws.String("by.host")}); scheme == "http" && err != nil {
			t.Errorf("create: %v", err)
		}
	}
}

func (w *world) multipartByHost(c *awss3.Client, bucket string) {
	w.t.Helper()
	m := begin(w.t, c, bucket, "")
	m.part(1, []byte("data"))
	if out, err := m.complete(c, m.parts); err != nil || !strings.HasSuffix(aws.ToString(out.Location), "://orders.s3.test:7480/"+strings.ReplaceAll(invoice, "/", "%2F")) {
		w.t.Errorf("complete: %+v, %v", out, err)
	}
}

func (w *world) presignedByHost(c *awss3.Client, hc *http.Client, bucket string) {
	w.t.Helper()
	presign := awss3.NewPresignClient(c)
	write, err := presign.PresignPutObject(w.t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: aws.String(invoice)})
	if err != nil {
		w.t.Fatal(err)
	}
	read, err := presign.PresignGetObject(w.t.Context(), getInput(bucket, invoice))
	if err != nil {
		w.t.Fatal(err)
	}
	if !strings.Contains(read.URL, "://orders.s3.test:7480/1001/") {
		w.t.Errorf("the URL is not by host: %s", read.URL)
	}
	for _, r := range []struct{ method, url, data, want string }{{"PUT", write.URL, "by URL", ""}, {"GET", read.URL, "", "by URL"}} {
		req, err := http.NewRequestWithContext(w.t.Context(), r.method, r.url, body(r.data))
		if err != nil {
			w.t.Fatal(err)
		}
		res, err := hc.Do(req)
		if err != nil {
			w.t.Fatal(err)
		}
		if text := readAll(w.t, res.Body); res.StatusCode != http.StatusOK || text != r.want {
			w.t.Errorf("%s: got %d %s", r.method, res.StatusCode, text)
		}
	}
}

// A URL signed for one bucket opens no other through another host in the request line, in the port, or after the
// domain.
func TestASignedHostIsTheHostThatCounts(t *testing.T) {
	t.Parallel()
	w := setup(t, func(cfg *config) { cfg.Domain = "s3.test" })
	bucket := w.bucket()
	if _, err := w.srv.Catalog().EnsureBucket(t.Context(), "secret", objects.NoRule()); err != nil {
		t.Fatal(err)
	}
	put(t, w.lease("orders/1001", 5), bucket, invoice, "open")
	put(t, w.root(), "secret", invoice, "hidden")
	c := w.virtual("http://s3.test", w.dialing(), w.issue("orders/1001", 5))
	signed, err := awss3.NewPresignClient(c).PresignGetObject(t.Context(), getInput(bucket, invoice))
	if err != nil {
		t.Fatal(err)
	}
	target := strings.TrimPrefix(signed.URL, "http://orders.s3.test")
	for line, want := range map[string]string{
		target: "open", "http://orders.s3.test" + target: "open", "http://ORDERS.S3.test" + target: "open",
		"http://secret.s3.test" + target: "InvalidURI", "http://s3.test/secret" + target: "InvalidURI", "http://127.0.0.1/secret" + target: "InvalidURI",
	} {
		status, text := w.wire(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: orders.s3.test\r\nConnection: close\r\n\r\n", line))
		if !strings.Contains(text, want) || strings.Contains(text, "hidden") {
			t.Errorf("%.40s: got %d %s, want %s", line, status, text, want)
		}
	}
	for _, host := range []string{"secret.s3.test.evil.test", "secret.s3.test.s3.test", "orders.s3.test, secret.s3.test", "secret.s3.test\r\nHost: orders.s3.test"} {
		if status, text := w.wire(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target, host)); status < 400 || strings.Contains(text, "hidden") {
			t.Errorf("%q: got %d %s", host, status, text)
		}
	}
}

// wire sends bytes and reads one answer, which may arrive before all is sent; 0 if there is none.
func (w *world) wire(request string) (int, string) {
	w.t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(w.t.Context(), "tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	_, sent := io.WriteString(conn, request)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, errText(sent)
	}
	return res.StatusCode, readAll(w.t, res.Body)
}

func TestTheS3PortsCertificateIsReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	files := filesIn(t)
	first := certify(t, files, "s3.test")
	w := setup(t, func(cfg *config) {
		var err error
		if cfg.TLS, err = files.Load(tlsfiles.Use{Port: "the S3 port"}, cfg.Logger); err != nil {
			t.Fatal(err)
		}
		cfg.HeaderTimeout = 8 * time.Second
	})
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	holding := w.virtual("https://127.0.0.1", w.dialing(first), w.issue("orders/1001", 5)) // an IP address: by path
	put(t, holding, bucket, invoice, "one")
	second := certify(t, files, "s3.test")
	put(t, w.virtual("https://127.0.0.1", w.dialing(second), w.issue("orders/1001", 5)), bucket, invoice, "two")
	if _, err := tryPut(t, w.virtual("https://127.0.0.1", w.dialing(first), w.issue("orders/1001", 5)), bucket, invoice, "x"); err == nil {
		t.Error("the old certificate is still shown")
	}
	if err := os.WriteFile(files.Key, []byte("half a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The last valid pair.
	put(t, w.virtual("https://127.0.0.1", w.dialing(second), w.issue("orders/1001", 5)), bucket, invoice, "three")
	if status, text := w.wire("GET / HTTP/1.1\r\nHost: x\r\n\r\n"); status != 400 || !strings.Contains(text, "https://") {
		t.Errorf("plain HTTP: got %d %q", status, text)
	}
	w.trickle("\x16\x03\x01\x02\x00", 30*time.Second) // a handshake has the time of headers
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fencegate/fencegate/internal/stack"
)

const bucket = "bench"

// s3Client only sends signed requests, so that its cost is the same for each contender.
type s3Client struct {
	addr   string
	keys   aws.Credentials
	signer *v4.Signer
	http   *http.Client
}

func newS3Client(s *stack.Stack, addr string, keys aws.Credentials) *s3Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true, WriteBufferSize: 256 << 10, ReadBufferSize: 256 << 10}
	s.AtClose(func() error { transport.CloseIdleConnections(); return nil })
	return &s3Client{addr: addr, keys: keys, signer: v4.NewSigner(), http: &http.Client{Transport: transport}}
}

// send sends a request and reads the whole answer, which is an error unless its status is of the 200s. It returns the
// text unless that is an object.
func (c *s3Client) send(ctx context.Context, method, path string, body io.Reader, size int64, header ...string) (text string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addr+path, body)
	if err != nil {
		return "", err
	}
	const unsigned = "UNSIGNED-PAYLOAD"
	req.ContentLength = size
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Header.Set("X-Amz-Content-Sha256", unsigned)
	if err := c.signer.SignHTTP(ctx, c.keys, req, unsigned, "s3", "us-east-1", time.Now(), func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }); err != nil {
		return "", err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	if method == http.MethodGet && !strings.Contains(path, "?") && res.StatusCode == http.StatusOK {
		n, err := io.Copy(io.Discard, res.Body)
		if err == nil && n != res.ContentLength {
			err = io.ErrUnexpectedEOF
		}
		return "", err
	}
	data, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %d %.300s", method, path, res.StatusCode, data)
	}
	return string(data), err
}

// zeros is a body of zero bytes.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	clear(p[:n])
	z.left -= n
	return int(n), nil
}

var small = make([]byte, 1<<20)

func (c *s3Client) put(ctx context.Context, key string, size int64) error {
	var body io.Reader = io.NopCloser(&zeros{left: size})
	if size <= int64(len(small)) {
		body = io.NopCloser(bytes.NewReader(small[:size]))
	}
	_, err := c.send(ctx, http.MethodPut, "/"+bucket+"/"+key, body, size)
	return err
}

func (c *s3Client) get(ctx context.Context, key string) error {
	_, err := c.send(ctx, http.MethodGet, "/"+bucket+"/"+key, nil, 0)
	return err
}

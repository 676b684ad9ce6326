package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// do sends a request. An answer whose status is not of the 200s is an error.
func (c *s3Client) do(ctx context.Context, method, path string, body io.Reader, size int64, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addr+path, body)
	if err != nil {
		return nil, err
	}
	const unsigned = "UNSIGNED-PAYLOAD"
	req.ContentLength = size
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Header.Set("X-Amz-Content-Sha256", unsigned)
	if err := c.signer.SignHTTP(ctx, c.keys, req, unsigned, "s3", "us-east-1", time.Now(), func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }); err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err == nil && res.StatusCode/100 != 2 {
		data, unread := io.ReadAll(res.Body)
		err = errors.Join(fmt.Errorf("%s %s: %d %.300s", method, path, res.StatusCode, data), unread, res.Body.Close())
	}
	return res, err
}

// send sends a request and returns the text of the answer.
func (c *s3Client) send(ctx context.Context, method, path string, body io.Reader, size int64, header ...string) (text string, err error) {
	res, err := c.do(ctx, method, path, body, size, header...)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	return string(data), err
}

// zeros are endless.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func (c *s3Client) put(ctx context.Context, key string, size int64) error {
	_, err := c.send(ctx, http.MethodPut, "/"+bucket+"/"+key, io.LimitReader(zeros{}, size), size)
	return err
}

// get reads an object, which has to have a size.
func (c *s3Client) get(ctx context.Context, key string, size int64) error {
	res, err := c.do(ctx, http.MethodGet, "/"+bucket+"/"+key, nil, 0)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	n, err := io.Copy(io.Discard, res.Body)
	if err == nil && n != size {
		err = fmt.Errorf("%s has %d bytes, wanted %d", key, n, size)
	}
	return err
}

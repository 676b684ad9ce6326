package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// client only sends signed requests, so that its cost is the same for each contender.
type client struct {
	addr                    string
	access, secret, session string
	signer                  *v4.Signer
	http                    *http.Client
}

func newClient(addr, access, secret string) *client {
	transport := &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true, WriteBufferSize: 256 << 10, ReadBufferSize: 256 << 10}
	return &client{addr: addr, access: access, secret: secret, signer: v4.NewSigner(), http: &http.Client{Transport: transport}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// send sends a request and reads the whole answer. It returns the text unless that is an object.
func (c *client) send(ctx context.Context, method, path string, body io.Reader, size int64, header ...string) (status int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addr+path, body)
	if err != nil {
		return 0, "", err
	}
	const unsigned = "UNSIGNED-PAYLOAD"
	req.ContentLength = size
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Header.Set("X-Amz-Content-Sha256", unsigned)
	keys := aws.Credentials{AccessKeyID: c.access, SecretAccessKey: c.secret, SessionToken: c.session}
	if err := c.signer.SignHTTP(ctx, keys, req, unsigned, "s3", "us-east-1", time.Now(), func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }); err != nil {
		return 0, "", err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	if method == http.MethodGet && !strings.Contains(path, "?") && res.StatusCode == http.StatusOK {
		n, err := io.Copy(io.Discard, res.Body)
		if err == nil && n != res.ContentLength {
			err = io.ErrUnexpectedEOF
		}
		return res.StatusCode, "", err
	}
	data, err := io.ReadAll(res.Body)
	return res.StatusCode, string(data), err
}

func (c *client) want(ctx context.Context, method, path string, body io.Reader, size int64) (text string, err error) {
	status, text, err := c.send(ctx, method, path, body, size)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s %s: %d %.300s", method, path, status, text)
	}
	return text, err
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

func (c *client) put(ctx context.Context, key string, size int64) error {
	var body io.Reader = io.NopCloser(&zeros{left: size})
	if size <= int64(len(small)) {
		body = io.NopCloser(bytes.NewReader(small[:size]))
	}
	_, err := c.want(ctx, http.MethodPut, "/"+bucket+"/"+key, body, size)
	return err
}

func (c *client) get(ctx context.Context, key string) error {
	_, err := c.want(ctx, http.MethodGet, "/"+bucket+"/"+key, nil, 0)
	return err
}

// field is the number after a name in a text of lines.
func field(text, name string) (int64, error) {
	_, rest, found := strings.Cut(text, name)
	if !found {
		return 0, fmt.Errorf("there is no %s", name)
	}
	return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
}

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// kind is an operation: do is a client's n-th.
type kind struct {
	name string
	do   func(ctx context.Context, s *side, client int, n int64) error
}

const (
	size    = 4 << 10
	objects = 1000 // objects to read, in turn
)

var small = strings.Repeat("x", size)

var kinds = []kind{
	{"S3 PUT 4 KiB", func(ctx context.Context, s *side, client int, n int64) error {
		return s.object(ctx, http.MethodPut, fmt.Sprintf("/%s/put/%d-%d", bucket, client, n%objects), small)
	}},
	{"S3 GET 4 KiB", func(ctx context.Context, s *side, client int, n int64) error {
		return s.object(ctx, http.MethodGet, fmt.Sprintf("/%s/get/%04d", bucket, (n+int64(client)*101)%objects), "")
	}},
	{"S3 list of 100", func(ctx context.Context, s *side, client int, n int64) error {
		return s.object(ctx, http.MethodGet, fmt.Sprintf("/%s?list-type=2&max-keys=100&prefix=get%%2F&start-after=get%%2F%04d", bucket, (n*7+int64(client))%800), "")
	}},
	{"HTTP acquire and release", func(ctx context.Context, s *side, client int, n int64) error {
		l, err := s.acquire(ctx, fmt.Sprintf("compare/%d/%d", client, n%100))
		if err != nil {
			return err
		}
		return s.ask(ctx, http.MethodPost, "/v1/leases/release", map[string]string{"handle": l.Handle}, nil)
	}},
	{"PostgreSQL port SELECT", func(ctx context.Context, s *side, client int, n int64) error {
		var status string
		return s.sessions[client].QueryRow(ctx, "SELECT status FROM compare WHERE id = $1", n%objects).Scan(&status)
	}},
	{"PostgreSQL port INSERT", func(ctx context.Context, s *side, client int, _ int64) error {
		_, err := s.sessions[client].Exec(ctx, "INSERT INTO compare_log (status) VALUES ($1)", "new")
		return err
	}},
}

// slice lets the clients do one kind of operation for a time. The first error ends it.
func (s *side) slice(ctx context.Context, k kind, d time.Duration, clients int) (sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Int64
	var all sync.WaitGroup
	before, err := s.spent()
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	for client := range clients {
		all.Go(func() {
			for time.Since(began) < d && ctx.Err() == nil {
				s.counts[client]++
				if err := k.do(ctx, s, client, s.counts[client]); err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	if err := context.Cause(ctx); err != nil {
		return sample{}, err
	}
	after, err := s.spent()
	n := done.Load()
	return sample{rate: float64(n) / took.Seconds(), cost: (after - before) / time.Duration(max(n, 1))}, err
}

// object sends a signed request, and expects 200 and the whole body.
func (s *side) object(ctx context.Context, method, target, body string) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.s3+target, strings.NewReader(body))
	if err != nil {
		return err
	}
	const unsigned = "UNSIGNED-PAYLOAD"
	req.Header.Set("X-Amz-Content-Sha256", unsigned)
	keys := aws.Credentials{AccessKeyID: s.keys.Access, SecretAccessKey: s.keys.Secret, SessionToken: s.keys.Session}
	if err := s.signer.SignHTTP(ctx, keys, req, unsigned, "s3", "us-east-1", time.Now(), func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }); err != nil {
		return err
	}
	res, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		return fmt.Errorf("%s %s: %d %.300s", method, target, res.StatusCode, text)
	}
	n, err := io.Copy(io.Discard, res.Body)
	if err == nil && method == http.MethodGet && n < size {
		err = fmt.Errorf("%s %s: %d bytes", method, target, n)
	}
	return err
}

//go:build balancer && unix

package haproxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/wire"
)

// tally holds the results of one surface's clients.
type tally struct {
	mu       sync.Mutex
	requests int
	errors   map[string]int
	longest  time.Duration     // the longest time between two successes of one client
	last     map[int]time.Time // last success, by client
	wrong    []string          // violations
	unknown  map[int]int       // by client
	acked    map[int]int       // by client
}

func newTally() *tally {
	return &tally{errors: map[string]int{}, last: map[int]time.Time{}, unknown: map[int]int{}, acked: map[int]int{}}
}

func (t *tally) note(who int, err error, kind func(error) string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
	now := time.Now()
	if last, ok := t.last[who]; ok && err == nil {
		t.longest = max(t.longest, now.Sub(last))
	}
	if err == nil {
		t.last[who] = now
		t.acked[who]++
		return
	}
	t.unknown[who]++
	t.errors[kind(err)]++
}

func (t *tally) brokenf(format string, a ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wrong = append(t.wrong, fmt.Sprintf(format, a...))
}

// take returns the results since the last call, and resets them, except the violations.
func (t *tally) take() (requests, failed int, line string, longest time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(t.errors)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, t.errors[kind]))
		failed += t.errors[kind]
	}
	for _, last := range t.last { // a client that still waits
		t.longest = max(t.longest, time.Since(last))
	}
	requests, longest = t.requests, t.longest
	t.requests, t.longest, t.errors = 0, 0, map[string]int{}
	if line = strings.Join(kinds, ", "); line == "" {
		line = "none"
	}
	return requests, failed, line, longest
}

func (w *world) client() *client.Client {
	c, err := client.New(client.Config{URL: "http://" + w.lb.API, HTTPClient: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Second}}})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func problemKind(err error) string {
	if p, ok := errors.AsType[*client.Problem](err); ok {
		return fmt.Sprintf("%d %s %.120s", p.Status, p.Code, p.Detail)
	}
	return "no answer"
}

// leases acquires and releases. Tokens must rise, and each answer is a separate lease.
func (w *world) leases(ctx context.Context, who int, seen *tally) {
	c, resource := w.client(), fmt.Sprintf("api/%d", who)
	var last fence.Token
	for ctx.Err() == nil {
		lease, err := c.Acquire(ctx, client.AcquireRequest{Resource: resource, TTL: 5 * time.Second, Wait: 10 * time.Second})
		if ctx.Err() != nil {
			return
		}
		seen.note(who, err, problemKind)
		if err != nil {
			continue
		}
		if lease.Token <= last {
			seen.brokenf("%s: token %d after %d", resource, lease.Token, last)
		}
		last = lease.Token
		if err = c.Release(ctx, lease.Handle); ctx.Err() == nil {
			seen.note(who, err, problemKind)
		}
	}
}

// rows inserts through the PostgreSQL port, and reconnects if the session has ended.
func (w *world) rows(ctx context.Context, who int, seen *tally) {
	cfg, err := pgx.ParseConfig(strings.Replace(w.pg.As(stack.Writer), w.pg.Addr(), w.lb.PG, 1))
	if err != nil {
		w.t.Error(err)
		return
	}
	cfg.ConnectTimeout = 5 * time.Second
	kind := func(err error) string {
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
			return refused.Code
		}
		return "connection lost"
	}
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for n := 0; ctx.Err() == nil; n++ {
		if conn == nil || conn.IsClosed() {
			if conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
				if conn = nil; ctx.Err() == nil {
					seen.note(who, err, func(err error) string { return "login: " + kind(err) })
				}
				continue
			}
		}
		if _, err = conn.Exec(ctx, "INSERT INTO load VALUES ($1, $2)", strconv.Itoa(who), n); ctx.Err() == nil {
			seen.note(who, err, kind)
		} else {
			seen.note(who, errors.New("cut off by the end of the test"), func(error) string { return "the test's end" })
		}
	}
}

// objects writes objects and reads them back, with the AWS SDK's defaults.
func (w *world) objects(ctx context.Context, who int, seen *tally) {
	api, name := w.client(), fmt.Sprintf("load/s3-%d", who)
	lease, err := api.Acquire(ctx, client.AcquireRequest{Resource: name, TTL: 5 * time.Minute})
	if err != nil {
		w.t.Error(err)
		return
	}
	given, err := api.Credentials(ctx, wire.CredentialsRequest{Handle: lease.Handle})
	if err != nil || given.EndpointURL != "http://"+w.lb.S3 {
		w.t.Errorf("credentials for %q: %v", given.EndpointURL, err)
		return
	}
	s3 := awss3.New(awss3.Options{
		BaseEndpoint: &given.EndpointURL, Region: given.Region, UsePathStyle: true, HTTPClient: &http.Client{Transport: &http.Transport{IdleConnTimeout: time.Second}},
		Credentials: credentials.NewStaticCredentialsProvider(given.AccessKeyID, given.SecretAccessKey, given.SessionToken),
	})
	kind := func(err error) string {
		if answer, ok := errors.AsType[smithy.APIError](err); ok {
			return answer.ErrorCode() + " " + answer.ErrorMessage()
		}
		if status, ok := errors.AsType[interface {
			error
			HTTPStatusCode() int
		}](err); ok && status.HTTPStatusCode() != 0 {
			return strconv.Itoa(status.HTTPStatusCode())
		}
		return "no answer"
	}
	bucket, key := aws.String("load"), aws.String(fmt.Sprintf("s3-%d/object", who))
	for n := 0; ctx.Err() == nil; n++ {
		body := []byte(fmt.Sprintf("%d:%d", who, n))
		_, err := s3.PutObject(ctx, &awss3.PutObjectInput{Bucket: bucket, Key: key, Body: bytes.NewReader(body)})
		if ctx.Err() != nil {
			return
		}
		seen.note(who, err, kind)
		if err != nil {
			continue
		}
		var read []byte
		got, err := s3.GetObject(ctx, &awss3.GetObjectInput{Bucket: bucket, Key: key})
		if err == nil {
			read, err = io.ReadAll(got.Body)
			_ = got.Body.Close()
		}
		if ctx.Err() != nil {
			return
		}
		if seen.note(who, err, kind); err == nil && !bytes.Equal(read, body) {
			seen.brokenf("%s: %q was read, and %q written", *key, read, body)
		}
	}
}

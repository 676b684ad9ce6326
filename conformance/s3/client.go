package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

// The common part of the clients in Go. Those in Python use common.py.

const (
	seeded        = "seed/one.txt" // 0123456789, text/plain, tag colour=blue, SHA-256; the newest of two versions
	seededText    = "0123456789"
	seededPart    = "seed/part.bin" // partSize bytes
	partSize      = 5 << 20
	versionedText = "first"
)

// errNotOffered reports that the client does not offer the operation.
var errNotOffered = errors.New("not offered")

// goClient is one of the clients in Go: its cases, and how it reports a refusal.
type goClient struct {
	cases  map[string]func(context.Context) error
	reason func(error) (status int, code string)
}

var goClients = map[string]func(context.Context) (goClient, error){"aws-sdk-go-v2": newAWS, "minio-go": newMinio}

// runGoClient runs a client's cases in order, and prints a line for each.
func runGoClient(ctx context.Context, name string) error {
	begin, known := goClients[name]
	if !known {
		return fmt.Errorf("there is no client %q", name)
	}
	c, err := begin(ctx)
	if err != nil {
		return err
	}
	for _, list := range [][]string{writes, reads} {
		for _, name := range list {
			outcome := notOffered
			if do := c.cases[name]; do != nil {
				outcome = c.outcome(do(ctx))
			}
			fmt.Println(name + "\t" + outcome)
		}
	}
	return nil
}

func (c goClient) outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, errNotOffered):
		return notOffered
	}
	status, code := c.reason(err)
	if code == "" {
		return "failed: " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	return strings.TrimPrefix(strconv.Itoa(status)+" "+code, "0 ")
}

// own is a key that only this client writes, with what it presents now.
func own(name string) string { return os.Getenv("RUN") + name }

// ownOrSeeded is own with a current grant. Without one the client
// has no object of its own, and the seeded ones must not change.
func ownOrSeeded(name string) string {
	if strings.HasSuffix(os.Getenv("RUN"), "-current/") {
		return own(name)
	}
	return seeded
}

// same compares a read value.
func same(what, got, want string) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("%s is %q, wanted %q", what, short(got), short(want))
}

func short(s string) string { return s[:min(len(s), 60)] }

// fetch sends a presigned request.
func fetch(ctx context.Context, method, url, body string, header http.Header) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	for name, values := range header {
		if name != "Host" {
			req.Header[name] = values
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = &presignedError{status: res.StatusCode, body: string(data)}
	}
	return string(data), err
}

// presignedError is the answer to a presigned request, which no client library sent.
type presignedError struct {
	status int
	body   string
}

func (e *presignedError) Error() string { return fmt.Sprintf("%d: %s", e.status, e.body) }

func (e *presignedError) code() string {
	_, rest, _ := strings.Cut(e.body, "<Code>")
	code, _, _ := strings.Cut(rest, "</Code>")
	return code
}

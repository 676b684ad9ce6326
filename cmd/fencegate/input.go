package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/fencegate/fencegate/internal/regular"
)

// readWithin reads in to its end, at most limit bytes. It returns when ctx is done, since a terminal may have no end.
func readWithin(ctx context.Context, in io.Reader, limit int64) ([]byte, error) {
	return interruptible(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(in, limit)) })
}

// readOnce reads a file that a command reads at its start. It may be a pipe, such as /dev/stdin: ctx ends the wait.
func readOnce(ctx context.Context, flag, path string) ([]byte, error) {
	return interruptible(ctx, func() ([]byte, error) {
		text, err := os.ReadFile(path) // opening a pipe blocks, too
		if err != nil {
			return nil, usage(errors.New(flag + ": " + err.Error()))
		}
		return text, nil
	})
}

// interruptible returns what read returns, or the cause of ctx's end, which read does not notice.
func interruptible(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := read()
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// readSecret reads a file that holds one secret on its only line.
func readSecret(flag, path string) (string, error) {
	text, err := regular.Read(path, regular.MaxBytes)
	if err != nil {
		return "", usage(errors.New(flag + ": " + err.Error()))
	}
	return secretIn(flag, path, text)
}

// secretIn returns the secret on a file's only line.
func secretIn(flag, path string, text []byte) (string, error) {
	secret := strings.TrimSpace(string(text))
	if secret == "" || strings.ContainsAny(secret, "\r\n") {
		return "", usage(errors.New(flag + ": " + path + " does not hold exactly one line"))
	}
	return secret, nil
}

// readKeys reads a file with one master key to a line.
func readKeys(path string) (string, error) {
	text, err := regular.Read(path, regular.MaxBytes)
	if err != nil {
		return "", usage(errors.New("--master-key-file: " + err.Error()))
	}
	return string(text), nil
}

// argument returns the argument at i, or "".
func argument(args []string, i int) string {
	if i < len(args) {
		return args[i]
	}
	return ""
}

//go:build unix

package main

import (
	"context"
	"os"
	"testing"
	"time"
)

// A lost reader is noticed without a write, as with `| head`.
func TestTheOutputsReaderIsMissedWithoutAWrite(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = write.Close() }()
	ctx, stop := withReader(t.Context(), write)
	defer stop()
	if readerGone(write) || ctx.Err() != nil {
		t.Error("it is missed before it went")
	}
	_ = read.Close()
	patience, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	select {
	case <-ctx.Done():
	case <-patience.Done():
		t.Error("it is not missed")
	}
}

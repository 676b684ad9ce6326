package transfer_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/transfer"
)

// A pipe whose reader stands still takes nothing, and no error comes from it.
func TestCatEndsWithItsContextWhereNobodyReads(t *testing.T) {
	t.Parallel()
	c, _ := at(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
	}))
	reader, writer := io.Pipe()
	defer func() { _ = reader.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Cat(ctx, transfer.Object{Bucket: "orders", Key: "x"}, writer, transfer.Options{}) }()
	if _, err := reader.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits on")
	}
}

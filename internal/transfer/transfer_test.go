package transfer_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/transfer"
)

// at returns a client for an S3 port that answers like the handler.
func at(t *testing.T, answer http.HandlerFunc) (*transfer.Client, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return transfer.New(transfer.Config{Endpoint: server.URL, Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("a", "b", "c")}), server
}

func asked(t *testing.T) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked %s %s", r.Method, r.URL) }
}

func TestARangeThatCannotBeReadIsRefusedAndReadsNothing(t *testing.T) {
	t.Parallel()
	c, _ := at(t, asked(t))
	for _, extent := range []string{"abc", "-", "1", "1-2,4-5", "5 -6", "--5", "0x1-"} {
		var out bytes.Buffer
		err := c.Cat(t.Context(), transfer.Object{Bucket: "orders", Key: "x"}, &out, transfer.Options{Range: extent})
		if !errors.Is(err, fence.ErrInvalid) || out.Len() > 0 || !strings.Contains(err.Error(), extent) {
			t.Errorf("%q: %v, %q", extent, err, &out)
		}
	}
}

// Opening a named pipe waits for a writer, and no signal ends that.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	t.Parallel()
	c, _ := at(t, asked(t))
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, t.TempDir(), os.DevNull} {
		err := c.Upload(t.Context(), path, transfer.Object{Bucket: "orders", Key: "x"}, transfer.Options{})
		if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestAFileIsUploadedToAnObjectAndNotToAFolder(t *testing.T) {
	t.Parallel()
	c, _ := at(t, asked(t))
	file := filepath.Join(t.TempDir(), "report.pdf")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := c.Upload(t.Context(), file, transfer.Object{Bucket: "orders", Key: "1001/"}, transfer.Options{})
	if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), "s3://orders/1001/report.pdf") {
		t.Errorf("got %v", err)
	}
}

func TestACopyNamesItsSourceWhateverItIsCalled(t *testing.T) {
	t.Parallel()
	var source string
	c, _ := at(t, func(w http.ResponseWriter, r *http.Request) {
		source = r.Header.Get("X-Amz-Copy-Source")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")
	})
	from, to := transfer.Object{Bucket: "orders", Key: "1001/a +ü%?#&.txt"}, transfer.Object{Bucket: "orders", Key: "1001/b"}
	err := c.Copy(t.Context(), from, to, transfer.Options{})
	if want := "orders%2F1001%2Fa%20%2B%C3%BC%25%3F%23&.txt"; source != want {
		t.Errorf("asked for %s, want %s", source, want)
	}
	if err == nil || !strings.Contains(err.Error(), from.String()+" to "+to.String()) {
		t.Errorf("the error does not name both: %v", err)
	}
}

func TestAnS3PortThatIsAwayIsSaidWithItsAddress(t *testing.T) {
	t.Parallel()
	c, server := at(t, asked(t))
	server.Close()
	err := c.Cat(t.Context(), transfer.Object{Bucket: "orders", Key: "x"}, io.Discard, transfer.Options{})
	away, ok := errors.AsType[*transfer.UnreachableError](err)
	if !ok || away.Endpoint != server.URL || strings.Contains(err.Error(), "StatusCode: 0") {
		t.Errorf("got %v", err)
	}
}

func TestAFileThatIsRewrittenInPlaceIsNotUnchanged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report.pdf")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, opened, err := transfer.OpenRegular(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := transfer.Unchanged(f, opened); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, opened.ModTime().Add(time.Millisecond)); err != nil { // the clock of files is coarse
		t.Fatal(err)
	}
	if err := transfer.Unchanged(f, opened); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

func TestWhetherALargeUploadWasDoneIsAskedByEndingIt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, transfer.PartSize+1); err != nil {
		t.Fatal(err)
	}
	for _, aborted := range []int{http.StatusNoContent, http.StatusNotFound, away} {
		c, _ := at(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			switch {
			case r.Method == http.MethodDelete:
				w.WriteHeader(aborted)
			case r.Method == http.MethodPut:
				w.Header().Set("ETag", `"x"`)
			case r.URL.Query().Has("uploads"):
				_, _ = io.WriteString(w, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
			case aborted == away:
				die(r)
			default: // the answer to the completion is lost
				panic(http.ErrAbortHandler)
			}
		})
		err := c.Upload(t.Context(), file, transfer.Object{Bucket: "orders", Key: "x"}, transfer.Options{})
		_, silent := errors.AsType[*transfer.UnreachableError](err)
		if unknown := errors.Is(err, fence.ErrUnknown); !silent || unknown != (aborted != http.StatusNoContent) {
			t.Errorf("the end is answered by %d: %v", aborted, err)
		}
	}
}

//go:build unix

package transfer_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/transfer"
)

var report = transfer.Object{Bucket: "orders", Key: "1001/report.pdf"}

// holding returns a client for an S3 port that has one object.
func holding(t *testing.T, text string) *transfer.Client {
	t.Helper()
	c, _ := at(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		_, _ = io.WriteString(w, text)
	})
	return c
}

func wantFile(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != text {
		t.Errorf("%s holds %q, %v; want %q", path, got, err, text)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != mode {
		t.Errorf("%s has the mode %v, want %v", path, info.Mode(), mode)
	}
}

func TestAFileThatIsReplacedKeepsItsMode(t *testing.T) {
	t.Parallel()
	c, dir := holding(t, "new"), t.TempDir()
	for _, mode := range []fs.FileMode{0o600, 0o640, 0o755} {
		path := filepath.Join(dir, mode.String())
		if err := os.WriteFile(path, []byte("an older one"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := c.Download(t.Context(), report, path, transfer.Options{}); err != nil {
			t.Error(err)
		}
		wantFile(t, path, "new", mode)
	}
}

// Only root can give a file to another user. Others replace their own files.
func TestAFileThatIsReplacedKeepsItsOwner(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report.pdf")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 65534, 65533
	}
	if err := os.Chown(path, uid, gid); err != nil {
		t.Fatal(err)
	}
	if err := holding(t, "new").Download(t.Context(), report, path, transfer.Options{}); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "new", 0o600)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != uint32(uid) || owner.Gid != uint32(gid) {
		t.Errorf("it is %+v's, want %d:%d", owner, uid, gid)
	}
}

func TestANewFileHasTheModeOfAnyNewFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	f, err := os.Create(other)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	info, err := os.Stat(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := holding(t, "new").Download(t.Context(), report, dir, transfer.Options{}); err != nil {
		t.Fatal(err)
	}
	wantFile(t, filepath.Join(dir, "report.pdf"), "new", info.Mode())
}

func TestASymbolicLinkIsFollowed(t *testing.T) {
	t.Parallel()
	c, dir := holding(t, "new"), t.TempDir()
	for _, folder := range []string{"a", "a/b", "c"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("real"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{
		"absolute": at("real"), "chain": "absolute", "c/folder": "../a/b", "c/up": "folder/../missing", "loop": "loop",
	} {
		if err := os.Symlink(to, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"chain", "c/up"} {
		if err := c.Download(t.Context(), report, at(link), transfer.Options{}); err != nil {
			t.Error(err)
		}
		if info, err := os.Lstat(at(link)); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s is no link any more: %v", link, err)
		}
	}
	wantFile(t, at("real"), "new", 0o600)
	if text, err := os.ReadFile(at("a/missing")); err != nil || string(text) != "new" {
		t.Errorf("the missing file: %q, %v", text, err)
	}
	if err := c.Download(t.Context(), report, at("loop"), transfer.Options{}); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a link to itself: %v", err)
	}
}

func TestANamedPipeAndADeviceAreWrittenTo(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("0123456789", 50_000) // more than a pipe holds
	c, pipe := holding(t, text), filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Download(t.Context(), report, pipe, transfer.Options{}) }()
	got, err := os.ReadFile(pipe)
	if err != nil || string(got) != text {
		t.Errorf("%d bytes came out, %v", len(got), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	null := filepath.Join(t.TempDir(), "null") // a link: the file itself must survive a failure of this test
	if err := os.Symlink(os.DevNull, null); err != nil {
		t.Fatal(err)
	}
	if err := c.Download(t.Context(), report, null, transfer.Options{}); err != nil {
		t.Error(err)
	}
	for path, kind := range map[string]fs.FileMode{pipe: fs.ModeNamedPipe, null: fs.ModeDevice | fs.ModeCharDevice} {
		if info, err := os.Stat(path); err != nil || info.Mode().Type() != kind {
			t.Errorf("%s is now %v, %v", path, info.Mode(), err)
		}
	}
}

func TestANamedPipeThatNobodyReadsHoldsNothingUp(t *testing.T) {
	t.Parallel()
	c, pipe := holding(t, strings.Repeat("0123456789", 50_000)), filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := c.Download(stopped, report, pipe, transfer.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("without a reader: %v", err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // O_RDONLY would wait for the writer
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.Download(ctx, report, pipe, transfer.Options{}) }()
	if _, err := reader.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("it was written although nobody read it")
	}
}

func TestATargetThatHoldsNoBytesIsRefused(t *testing.T) {
	t.Parallel()
	c, _ := at(t, asked(t))
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "report.pdf"), 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, path := range []string{dir, socket} {
		err := c.Download(t.Context(), report, path, transfer.Options{})
		if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestADownloadThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	if err := os.WriteFile(old, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _ := at(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "abc")
	})
	for _, path := range []string{old, filepath.Join(dir, "new")} {
		if err := c.Download(t.Context(), report, path, transfer.Options{}); err == nil {
			t.Errorf("%s: no error for an object that broke off", path)
		}
	}
	wantFile(t, old, "old", 0o600)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestAnOpenFileIsNotReplacedByTheNameOfItsDescriptor(t *testing.T) {
	t.Parallel()
	c, _ := at(t, asked(t))
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteString("old"); err != nil {
		t.Fatal(err)
	}
	if err := f.Chmod(0o600); err != nil {
		t.Fatal(err)
	}
	number := strconv.FormatUint(uint64(f.Fd()), 10)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/dev/fd/"+number, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/dev/fd/" + number, "/proc/self/fd/" + number, link} {
		if err := c.Download(t.Context(), report, path, transfer.Options{}); !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), "/dev/stdout") {
			t.Errorf("%s: %v", path, err)
		}
	}
	wantFile(t, f.Name(), "old", 0o600)
}

func TestAFileWithTheLongestNameIsDownloaded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), strings.Repeat("n", 255))
	if err := holding(t, "new").Download(t.Context(), report, path, transfer.Options{}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "new" {
		t.Errorf("%q, %v", text, err)
	}
}

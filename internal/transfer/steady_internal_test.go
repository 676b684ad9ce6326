package transfer

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAFileThatIsRewrittenWhileItIsSentKeepsItsLastByteBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report.pdf")
	if err := os.WriteFile(path, []byte("old and old"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, opened, err := OpenRegular(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	body := &steady{file: f, opened: opened}
	if all, err := io.ReadAll(body); err != nil || string(all) != "old and old" {
		t.Errorf("unchanged: %q, %v", all, err)
	}
	if _, err := body.Seek(0, io.SeekStart); err != nil { // for a repeat
		t.Fatal(err)
	}
	begin := make([]byte, 4)
	if _, err := io.ReadFull(body, begin); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("new and new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, opened.ModTime().Add(time.Millisecond)); err != nil { // the clock of files is coarse
		t.Fatal(err)
	}
	rest, err := io.ReadAll(io.LimitReader(body, opened.Size()-4)) // an HTTP client reads no further
	if err == nil || !strings.Contains(err.Error(), path) || len(rest) == len("and old") {
		t.Errorf("changed: %q, %v", rest, err)
	}
}

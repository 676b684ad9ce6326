//go:build unix

package pgserver

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// xzOf wraps bytes as an .xz file of stored (uncompressed) LZMA2 chunks: the
// standard library has no writer, and a bare machine has no xz command.
func xzOf(data []byte) []byte {
	crc := func(b []byte) []byte { return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(b)) }
	pad := func(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }
	flags := []byte{0, 1} // check: CRC32
	header := append(append([]byte("\xFD7zXZ\x00"), flags...), crc(flags)...)
	block := []byte{2, 0, 0x21, 1, 22, 0, 0, 0} // size (2+1)*4 with the CRC; one filter: LZMA2, dictionary of 8 MiB
	block = append(block, crc(block)...)
	var body []byte
	control := byte(1) // uncompressed, dictionary reset; 2 from then on
	for rest := data; len(rest) > 0; control = 2 {
		n := min(len(rest), 1<<16)
		body = append(binary.BigEndian.AppendUint16(append(body, control), uint16(n-1)), rest[:n]...)
		rest = rest[n:]
	}
	body = append(body, 0)
	unpadded := len(block) + len(body) + 4
	index := binary.AppendUvarint([]byte{0, 1}, uint64(unpadded))
	index = pad(binary.AppendUvarint(index, uint64(len(data))))
	index = append(index, crc(index)...)
	footer := append(binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1)), flags...)
	out := append(append(header, block...), pad(body)...)
	out = append(append(out, crc(data)...), index...)
	return append(append(append(out, crc(footer)...), footer...), "YZ"...)
}

// jarOfLocalBinaries packs this machine's binaries as the repository does: a .txz in a .jar.
func jarOfLocalBinaries(t *testing.T) []byte {
	t.Helper()
	found, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	home := filepath.Dir(found[0].BinDir)
	libraries, err := filepath.Glob(filepath.Join(home, "lib", "*.so")) // found relative to the binary
	if err != nil {
		t.Fatal(err)
	}
	bin := func(name string) string { return filepath.Join(home, "bin", name) }
	for _, file := range append(libraries, bin("postgres"), bin("initdb"), bin("pg_ctl")) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel(home, file)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(tw.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}), second(tw.Write(text))); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	var jar bytes.Buffer
	zw := zip.NewWriter(&jar)
	w, err := zw.CreateHeader(&zip.FileHeader{Name: "postgres-linux-x86_64.txz", Method: zip.Store})
	if err := errors.Join(err, second(w.Write(xzOf(archive.Bytes()))), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return jar.Bytes()
}

func second(_ int, err error) error { return err }

// repository serves the jar and its checksum, whatever the platform's name.
func repository(t *testing.T, jar []byte, sum string) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasPrefix(r.URL.Path, "/io/zonky/test/postgres/embedded-postgres-binaries-"):
			http.NotFound(w, r)
		case strings.HasSuffix(r.URL.Path, ".jar.sha256"):
			_, _ = w.Write([]byte(sum))
		case strings.HasSuffix(r.URL.Path, ".jar"):
			_, _ = w.Write(jar)
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

func sumOf(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

func TestPostgreSQLIsDownloadedWithProgressAndRuns(t *testing.T) {
	t.Parallel()
	jar := jarOfLocalBinaries(t)
	repo := repository(t, jar, sumOf(jar))
	var mu sync.Mutex
	var lines []string
	src := Sources{Cache: filepath.Join(folder(t), "cache"), Repository: repo.URL, OnlyDownload: true, Progress: func(line string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, line)
	}}
	bin, err := Locate(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(bin, src.Cache) {
		t.Errorf("the binaries are in %s", bin)
	}
	if len(lines) < 2 || !strings.HasPrefix(lines[0], "downloading PostgreSQL ") {
		t.Errorf("progress: %q", lines)
	}
	s := start(t, Config{Dir: folder(t), BinDir: bin, Fast: true})
	if got := query(t, s, "SELECT 'ok'"); got != "ok" {
		t.Fatal(got)
	}

	repo.Close() // the second time it comes from the cache
	if again, err := Locate(t.Context(), src); err != nil || again != bin {
		t.Fatalf("%s, %v", again, err)
	}
	left, err := os.ReadDir(src.Cache)
	if err != nil || len(left) != 1 {
		t.Errorf("the cache holds %v, %v", left, err)
	}
}

func TestADamagedDownloadIsRefused(t *testing.T) {
	t.Parallel()
	jar := []byte("no archive at all")
	for name, c := range map[string]struct{ sum, want string }{
		"wrong checksum": {sumOf([]byte("another")), "checksum"},
		"no archive":     {sumOf(jar), "zip"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := Sources{Cache: folder(t), Repository: repository(t, jar, c.sum).URL, OnlyDownload: true}
			_, err := Locate(t.Context(), src)
			if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "apt install postgresql") {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestAnUnreachableRepositoryIsNamed(t *testing.T) {
	t.Parallel()
	repo := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(repo.Close)
	_, err := Locate(t.Context(), Sources{Cache: folder(t), Repository: repo.URL, OnlyDownload: true})
	if err == nil || !strings.Contains(err.Error(), "404") || !strings.Contains(err.Error(), repo.URL) {
		t.Fatalf("got %v", err)
	}
}

func TestADownloadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	repo := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done() // never answers
	}))
	t.Cleanup(repo.Close)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	_, err := Locate(ctx, Sources{Cache: folder(t), Repository: repo.URL, OnlyDownload: true})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// Sources says where PostgreSQL's binaries may come from.
type Sources struct {
	// Cache is the folder that downloads are kept in; required. Started as root,
	// PostgreSQL runs as another user, who must be able to enter it.
	Cache string
	// Dir is the cluster's folder, where it exists already: its version decides. Default: any version serves.
	Dir string
	// Repository is a Maven repository with io.zonky.test.postgres's binaries. Default: [DefaultRepository].
	Repository string
	// Progress is told what takes long, one line at a time. Default: nobody is.
	Progress func(line string)
	// OnlyDownload passes over what the machine has.
	OnlyDownload bool
}

// DefaultRepository is Maven Central.
const DefaultRepository = "https://repo1.maven.org/maven2"

// downloads are the versions that are fetched, by major version; 0: where any serves.
var downloads = map[int]embeddedpostgres.PostgresVersion{
	0:  embeddedpostgres.V17,
	14: embeddedpostgres.V14,
	15: embeddedpostgres.V15,
	16: embeddedpostgres.V16,
	17: embeddedpostgres.V17,
	18: embeddedpostgres.V18,
}

// Locate returns a folder of PostgreSQL's binaries: one on the machine, else
// one downloaded before, else one that it downloads now. The error says what to
// install when none can be had.
func Locate(ctx context.Context, src Sources) (binDir string, err error) {
	if src.Progress == nil {
		src.Progress = func(string) {}
	}
	if src.Repository == "" {
		src.Repository = DefaultRepository
	}
	major := 0
	if src.Dir != "" {
		if major, err = clusterMajor(filepath.Join(src.Dir, "data")); err != nil {
			return "", err
		}
	}
	if !src.OnlyDownload {
		found, err := Find()
		if err != nil && !errors.Is(err, ErrNotFound) {
			return "", err
		}
		for _, in := range found {
			if major == 0 || major == in.Major {
				return in.BinDir, nil
			}
		}
	}
	version, ok := downloads[major]
	if !ok {
		return "", fmt.Errorf("the cluster in %s is of PostgreSQL %d: %w", src.Dir, major, ErrNotFound)
	}
	binDir, err = download(ctx, src, version)
	if err != nil {
		return "", fmt.Errorf("%w, and PostgreSQL %s could not be downloaded from %s: %w; install PostgreSQL (Debian: apt install postgresql; macOS: brew install postgresql@17)",
			ErrNotFound, version, src.Repository, err)
	}
	return binDir, nil
}

// download fetches the version into the cache, unless it is there.
func download(ctx context.Context, src Sources, version embeddedpostgres.PostgresVersion) (string, error) {
	home := filepath.Join(src.Cache, string(version))
	binDir := filepath.Join(home, "bin")
	if _, err := majorOf(binDir); err == nil {
		return binDir, nil
	}
	if err := os.MkdirAll(src.Cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(src.Cache, "download-") // renamed when complete
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	relay := &relay{ctx: ctx, upstream: strings.TrimSuffix(src.Repository, "/"), version: string(version), progress: src.Progress}
	address, closeRelay, err := relay.listen()
	if err != nil {
		return "", err
	}
	defer closeRelay()

	// The library has no entry that only downloads. It extracts first and makes a
	// data folder then; a folder that can't exist ends its Start in between.
	nowhere := filepath.Join(work, "nowhere")
	if err := os.WriteFile(nowhere, nil, 0o600); err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	extracted := filepath.Join(work, "extracted")
	err = embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(version).Port(port).Logger(io.Discard).BinaryRepositoryURL(address).
		CachePath(filepath.Join(work, "archive")).BinariesPath(extracted).
		RuntimePath(filepath.Join(work, "runtime")).DataPath(filepath.Join(nowhere, "data"))).Start()
	if failed := relay.failure(); failed != nil {
		return "", failed
	}
	if _, broken := majorOf(filepath.Join(extracted, "bin")); broken != nil {
		return "", errors.Join(err, broken)
	}
	if err := os.Chmod(extracted, 0o755); err != nil { // PostgreSQL runs as another user
		return "", err
	}
	src.Progress("PostgreSQL " + string(version) + " is in " + home)
	if err := os.RemoveAll(home); err != nil { // a broken one
		return "", err
	}
	return binDir, os.Rename(extracted, home)
}

func freePort() (uint32, error) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return uint32(port), l.Close()
}

// relay passes the library's requests on to the repository. The library reads a
// whole archive in silence and can't be interrupted; through the relay the
// download shows its progress, ends with the context, and says why it failed.
type relay struct {
	ctx      context.Context //nolint:containedctx // the library's requests carry none; this is the caller's
	upstream string
	version  string
	progress func(string)

	mu  sync.Mutex
	err error // the first failure
}

func (r *relay) listen() (address string, closeAll func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	srv := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l) // ends with Close
	}()
	closeAll = func() {
		_ = srv.Close()
		<-done
		http.DefaultTransport.(*http.Transport).CloseIdleConnections() // the library's
	}
	return "http://" + l.Addr().String(), closeAll, nil
}

func (r *relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if err := r.pass(w, req.URL.Path); err != nil {
		r.fail(err)
		panic(http.ErrAbortHandler) // the library sees a torn answer, never a short archive
	}
}

func (r *relay) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

func (r *relay) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *relay) pass(w http.ResponseWriter, path string) error {
	out, err := http.NewRequestWithContext(r.ctx, http.MethodGet, r.upstream+path, nil)
	if err != nil {
		return err
	}
	in, err := http.DefaultClient.Do(out) //nolint:bodyclose // closed below; the linter loses it in counted
	if err != nil {
		return err
	}
	defer in.Body.Close()
	archive := strings.HasSuffix(path, ".jar")
	if archive && in.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", r.upstream+path, in.Status)
	}
	w.WriteHeader(in.StatusCode)
	body := io.Reader(in.Body)
	if archive {
		body = &counted{Reader: in.Body, total: in.ContentLength, tell: func(done int64) {
			r.progress(fmt.Sprintf("downloading PostgreSQL %s: %d of %d MB", r.version, done>>20, max(in.ContentLength, done)>>20))
		}}
	}
	_, err = io.Copy(w, body)
	return err
}

// counted tells of each tenth of what is read.
type counted struct {
	io.Reader

	total, done, told int64
	tell              func(done int64)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.done += int64(n)
	if step := max(c.total/10, 4<<20); c.done-c.told >= step || c.told == 0 {
		c.told = max(c.done, 1)
		c.tell(c.done)
	}
	return n, err
}

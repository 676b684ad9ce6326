package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

// Blobs is the S3 service that keeps the gateways' blobs, on the file system of [Disk].
type Blobs struct {
	Name    string // "blobs"
	Addr    string // host:port, without a relay
	LogFile string

	spec child.Spec // without its log file

	mu     sync.Mutex
	proc   process
	starts int
}

// As in package s3posix: with others, a gateway does not start.
const (
	blobsAccess = "upstream"
	blobsSecret = "upstream-secret"
	blobsBucket = "blobs"
)

// startService starts the S3 service on a folder.
func (c *Cluster) startService(ctx context.Context, folder string) error {
	port, err := child.FreePort()
	if err != nil {
		return err
	}
	dir := filepath.Join(c.dir, "blobs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	b := &Blobs{Name: "blobs", Addr: fmt.Sprintf("127.0.0.1:%d", port), LogFile: filepath.Join(dir, "log")}
	b.spec = child.Spec{Path: c.opts.BlobS3, Args: []string{folder, b.Addr}, Dir: dir, DeathSignal: syscall.SIGKILL}
	c.Blobs = b
	c.files = filepath.Join(folder, "data", blobsBucket)
	c.blobEnv = []string{"AWS_ACCESS_KEY_ID=" + blobsAccess, "AWS_SECRET_ACCESS_KEY=" + blobsSecret}
	return b.Restart(ctx)
}

// location is the value of serve's --blobs for a service at addr.
func (b *Blobs) location(addr string) string {
	query := url.Values{"endpoint": {"http://" + addr}, "region": {"us-east-1"}, "path-style": {"true"}}
	return "s3://" + blobsBucket + "/fencegate?" + query.Encode()
}

// Kill ends the service like kill -9. It stays down until [Blobs.Restart].
func (b *Blobs) Kill() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kill()
	return nil
}

func (b *Blobs) kill() {
	if b.proc.Process != nil {
		b.proc.Kill()
	}
}

// Restart kills the service if it runs, starts it, and returns when it answers.
func (b *Blobs) Restart(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kill()
	proc, err := startLogged(b.spec, b.LogFile)
	if err != nil {
		return err
	}
	b.proc = process{Process: proc}
	b.starts++
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = until(ctx, 20*time.Millisecond, b.Name+" answers", func() error { return b.answers(ctx) })
	if err != nil {
		return fmt.Errorf("%w%s", err, lastLines(b.LogFile))
	}
	return nil
}

// answers checks that the service answers a request without credentials, in any way.
func (b *Blobs) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.Addr+"/", nil)
	if err != nil {
		return err
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// Freeze stops the service (SIGSTOP).
func (b *Blobs) Freeze() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.proc.freeze()
}

// Thaw resumes it.
func (b *Blobs) Thaw() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.proc.thaw()
}

// Pid is the process's id, of the last one if none runs.
func (b *Blobs) Pid() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.proc.Pid()
}

// heal starts or thaws the service.
func (b *Blobs) heal(ctx context.Context) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	err := b.proc.thaw()
	down := !alive(b.proc.Pid())
	b.mu.Unlock()
	if down {
		err = errors.Join(err, b.Restart(ctx))
	}
	return err
}

func (b *Blobs) close() error {
	if b == nil {
		return nil
	}
	return b.Kill()
}

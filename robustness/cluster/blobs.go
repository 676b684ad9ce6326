package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/stack"
)

// Blobs is the S3 service that keeps the gateways' blobs, on the file system of [Disk].
type Blobs struct {
	process

	Addr string // host:port, without a relay
}

// As in package s3posix: with others, a gateway does not start.
const (
	blobsAccess = "upstream"
	blobsSecret = "upstream-secret"
	blobsBucket = "blobs"
)

// startBlobs creates the storage for the blobs.
func (c *Cluster) startBlobs(ctx context.Context) error {
	disk := filepath.Join(c.dir, "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		return err
	}
	if err := c.mountDisk(disk); err != nil {
		return err
	}
	c.files = filepath.Join(disk, "blobs")
	if c.opts.BlobS3 == "" {
		return nil
	}
	addr, err := stack.FreeAddr()
	if err != nil {
		return err
	}
	b := &Blobs{Addr: addr}
	if err := c.prepare(&b.process, "blobs", ownClock, child.Spec{Path: c.opts.BlobS3, Args: []string{c.files, addr}}); err != nil {
		return err
	}
	b.answers = b.listens
	c.Blobs, c.files = b, filepath.Join(c.files, "data", blobsBucket)
	c.blobEnv = []string{"AWS_ACCESS_KEY_ID=" + blobsAccess, "AWS_SECRET_ACCESS_KEY=" + blobsSecret}
	return b.Start(ctx)
}

// blobsAt is the value of serve's --blobs: the folder, or the service at an address; "" is its own.
func (c *Cluster) blobsAt(addr string) string {
	if c.Blobs == nil {
		return c.files
	}
	if addr == "" {
		addr = c.Blobs.Addr
	}
	query := url.Values{"endpoint": {"http://" + addr}, "region": {"us-east-1"}, "path-style": {"true"}}
	return "s3://" + blobsBucket + "/fencegate?" + query.Encode()
}

// Start starts the service after Kill, and returns when it answers.
func (b *Blobs) Start(ctx context.Context) error { return b.restart(ctx, nothing) }

// listens checks that the service takes connections.
func (b *Blobs) listens(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", b.Addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// Disk is the blobs' own file system: in memory, with a limited size.
type Disk struct {
	Path string

	mu sync.Mutex
}

// mountDisk makes the file system. Who may not mount has none, and no fault fills it.
func (c *Cluster) mountDisk(path string) error {
	options := fmt.Sprintf("size=%d,mode=700", c.opts.Disk)
	err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options)
	if errors.Is(err, syscall.EPERM) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("a file system for the blobs: %w", err)
	}
	c.Disk = &Disk{Path: path}
	c.stack.AtClose(func() error {
		defer child.Unmounted(path)
		return unix.Unmount(path, unix.MNT_DETACH)
	})
	return child.UnmountAtDeath(path)
}

// ID is the disk's name.
func (d *Disk) ID() string { return "disk" }

const filler = "filler"

// Fill leaves the given number of bytes free, or less if others write.
func (d *Disk) Fill(_ context.Context, leave int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	file, err := os.OpenFile(filepath.Join(d.Path, filler), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for size := int64(0); ; {
		free, err := d.Left()
		if err != nil || free <= leave {
			return err
		}
		if err := unix.Fallocate(int(file.Fd()), 0, size, free-leave); err == nil {
			size += free - leave
		} else if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EINTR) { // another writer was faster
			return err
		}
	}
}

// Left is how many bytes are free.
func (d *Disk) Left() (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(d.Path, &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bfree) * fs.Bsize, nil
}

// Free removes the file of Fill.
func (d *Disk) Free() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := os.Remove(filepath.Join(d.Path, filler)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

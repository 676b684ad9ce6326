package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fencegate/fencegate/internal/child"
)

// Disk is the blobs' own file system: in memory, with a limited size.
type Disk struct {
	Path string

	mu sync.Mutex
}

// startBlobs creates the storage for the blobs and the gateways' secret files.
func (c *Cluster) startBlobs(ctx context.Context) error {
	for name, text := range map[string]string{"master": masterKey, "token": Token, "s3secret": rootSecret} {
		if err := os.WriteFile(c.secret(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	path := filepath.Join(c.dir, "disk")
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	if err := c.mountDisk(path); err != nil {
		return err
	}
	c.files = filepath.Join(path, "blobs")
	if c.opts.BlobS3 == "" {
		return nil
	}
	return c.startService(ctx, c.files)
}

func (c *Cluster) mountDisk(path string) error {
	options := fmt.Sprintf("size=%d,mode=700", c.opts.Disk)
	err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options)
	switch {
	case err == nil:
		c.Disk = &Disk{Path: path}
		return child.UnmountAtDeath(path)
	case errors.Is(err, syscall.EPERM):
		c.log.Warn("the blobs have no file system of their own: no disk will be full", "error", err)
		return nil
	default:
		return fmt.Errorf("a file system for the blobs: %w", err)
	}
}

const filler = "filler"

// Fill leaves the given number of bytes free.
func (d *Disk) Fill(_ context.Context, leave int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	file, err := os.OpenFile(filepath.Join(d.Path, filler), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	block := make([]byte, 1<<20)
	for {
		free, err := d.Left()
		if err != nil || free <= leave {
			return err
		}
		_, err = file.Write(block[:min(int64(len(block)), free-leave)])
		if err != nil && !errors.Is(err, syscall.ENOSPC) {
			return err
		}
		if err != nil { // another writer was faster
			return nil //nolint:nilerr // the disk is full, as asked
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

func (d *Disk) unmount() error {
	if d == nil {
		return nil
	}
	err := unix.Unmount(d.Path, unix.MNT_DETACH)
	child.Unmounted(d.Path)
	if errors.Is(err, unix.EINVAL) { // it is not mounted
		return nil
	}
	return err
}

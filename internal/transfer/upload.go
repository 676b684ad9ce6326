package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencegate/fencegate/fence"
)

// abortTimeout bounds the clean-up after an upload that failed.
const abortTimeout = 10 * time.Second

// Upload writes a regular file to an object: at once, or in parts if it is large. A file whose size or time changes
// meanwhile is refused. If the answer is lost, the error is an [*UnknownError].
func (c *Client) Upload(ctx context.Context, path string, to Object, o Options) error {
	if strings.HasSuffix(to.Key, "/") {
		return &fence.InvalidError{Field: "target", Reason: fmt.Sprintf("is %s, which ends with a slash; it must name the object, such as %s", to, to.String()+filepath.Base(path))}
	}
	f, opened, err := OpenRegular(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	size := opened.Size()
	contentType := optional(mime.TypeByExtension(filepath.Ext(path)))
	if size <= PartSize {
		_, err := c.s3.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &to.Bucket, Key: &to.Key, Body: &steady{file: f, opened: opened}, ContentLength: &size, ContentType: contentType, IfNoneMatch: o.ifNoneMatch(),
		})
		return c.explainWrite(to.String(), "upload", to, err)
	}
	return c.inParts(ctx, f, opened, to, contentType, o)
}

// OpenRegular opens a file for an upload, and returns its state for [Unchanged]. It checks the file's type first:
// opening a named pipe would wait for its writer.
func OpenRegular(path string) (f *os.File, info fs.FileInfo, err error) {
	info, err = os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = &fence.InvalidError{Field: "file", Reason: fmt.Sprintf("%q is not a regular file", path)}
	}
	if err != nil {
		return nil, nil, err
	}
	if f, err = os.Open(path); err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// Unchanged returns an error if a file that was read no longer has the size or the time that it was opened with.
func Unchanged(f *os.File, opened fs.FileInfo) error {
	now, err := f.Stat()
	if err != nil {
		return err
	}
	if now.Size() != opened.Size() || !now.ModTime().Equal(opened.ModTime()) {
		return fmt.Errorf("the size or time of %s changed while it was read; upload it again when nothing writes to it", f.Name())
	}
	return nil
}

// steady is a file as the body of a request. It keeps its last byte back if the file has changed since it was opened:
// the request remains incomplete, and no object is created.
type steady struct {
	file   *os.File
	opened fs.FileInfo
	at     int64
}

func (s *steady) Read(p []byte) (int, error) {
	n, err := s.file.Read(p)
	if s.at += int64(n); s.at >= s.opened.Size() || err != nil {
		if changed := Unchanged(s.file, s.opened); changed != nil {
			return 0, changed
		}
	}
	return n, err
}

func (s *steady) Seek(offset int64, whence int) (at int64, err error) {
	s.at, err = s.file.Seek(offset, whence)
	return s.at, err
}

// inParts uploads one part after the other; a part that is sent again is read again. The SDK's transfer manager would
// complete an upload by itself. Here the file is checked first: if it was written to meanwhile, no object is created.
func (c *Client) inParts(ctx context.Context, f *os.File, opened fs.FileInfo, to Object, contentType *string, o Options) (err error) {
	begun, err := c.s3.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &to.Bucket, Key: &to.Key, ContentType: contentType})
	if err != nil {
		return c.explain(to.String(), err)
	}
	defer func() {
		if err == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		defer cancel()
		// If this fails, too, the gateway's sweep removes the parts.
		_, failed := c.s3.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &to.Bucket, Key: &to.Key, UploadId: begun.UploadId})
		if unknown, ok := errors.AsType[*UnknownError](err); ok && failed == nil { // what is aborted was never completed
			err = fmt.Errorf("%s: %w", to, unknown.Err)
		}
	}()
	size := opened.Size()
	length := partSize(size)
	var parts []types.CompletedPart
	for offset := int64(0); offset < size; offset += length {
		number := int32(len(parts) + 1)
		n := min(length, size-offset)
		out, err := c.s3.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: &to.Bucket, Key: &to.Key, UploadId: begun.UploadId, PartNumber: &number, ContentLength: &n, Body: io.NewSectionReader(f, offset, n),
		})
		if err != nil {
			return c.explain(to.String(), err)
		}
		parts = append(parts, types.CompletedPart{PartNumber: &number, ETag: out.ETag, ChecksumCRC32: out.ChecksumCRC32})
	}
	if err := Unchanged(f, opened); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	_, err = c.s3.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &to.Bucket, Key: &to.Key, UploadId: begun.UploadId, IfNoneMatch: o.ifNoneMatch(),
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}, MpuObjectSize: &size,
	})
	return c.explainWrite(to.String(), "upload", to, err)
}

// partSize is PartSize, or more for a file of more than 10,000 parts.
func partSize(size int64) int64 {
	return max(PartSize, (size+maxParts-1)/maxParts)
}

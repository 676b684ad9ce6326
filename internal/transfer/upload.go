package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"path/filepath"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// abortTimeout bounds the clean-up after an upload that failed.
const abortTimeout = 10 * time.Second

// Upload writes a regular file into an object: at once, or in parts where it is
// large. One that changes its size meanwhile is refused.
func (c *Client) Upload(ctx context.Context, path string, to Object, o Options) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", path)
	}
	contentType := optional(mime.TypeByExtension(filepath.Ext(path)))
	if info.Size() <= PartSize {
		_, err := c.s3.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &to.Bucket, Key: &to.Key, Body: f, ContentLength: aws.Int64(info.Size()), ContentType: contentType, IfNoneMatch: o.ifNoneMatch(),
		})
		return explain(to, err)
	}
	return explain(to, c.inParts(ctx, f, info.Size(), to, contentType, o))
}

// inParts uploads one part after the other; each is read again where it is sent again.
func (c *Client) inParts(ctx context.Context, f *os.File, size int64, to Object, contentType *string, o Options) (err error) {
	begun, err := c.s3.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &to.Bucket, Key: &to.Key, ContentType: contentType})
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		defer cancel()
		// What is left where this fails, too, is the sweep's.
		_, _ = c.s3.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &to.Bucket, Key: &to.Key, UploadId: begun.UploadId})
	}()
	length := partSize(size)
	var parts []types.CompletedPart
	for offset := int64(0); offset < size; offset += length {
		number := int32(len(parts) + 1)
		n := min(length, size-offset)
		out, err := c.s3.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: &to.Bucket, Key: &to.Key, UploadId: begun.UploadId, PartNumber: &number, ContentLength: &n, Body: io.NewSectionReader(f, offset, n),
		})
		if err != nil {
			return err
		}
		parts = append(parts, types.CompletedPart{PartNumber: &number, ETag: out.ETag, ChecksumCRC32: out.ChecksumCRC32})
	}
	if info, err := f.Stat(); err != nil || info.Size() != size {
		return errors.Join(errors.New("the file changed while it was read"), err)
	}
	_, err = c.s3.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &to.Bucket, Key: &to.Key, UploadId: begun.UploadId, IfNoneMatch: o.ifNoneMatch(),
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}, MpuObjectSize: &size,
	})
	return err
}

// partSize is PartSize, or more for a file of more than 10,000 parts.
func partSize(size int64) int64 {
	return max(PartSize, (size+maxParts-1)/maxParts)
}

package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// readObject reads the object in one of the ways of programs: whole, in part, its metadata alone, or whole and listed.
func (h *s3Holding) readObject(ctx context.Context) (saw, wrong string, err error) {
	err = h.call(ctx, func(ctx context.Context, c *s3.Client) error {
		way := h.s.env.dice.below(8)
		switch {
		case h.wholly:
			saw, wrong, _, err = h.whole(ctx, c)
		case way == 0:
			saw, wrong, err = h.head(ctx, c)
		case way <= 2:
			saw, wrong, err = h.part(ctx, c)
		case way == 3:
			saw, wrong, err = h.listed(ctx, c)
		default:
			saw, wrong, _, err = h.whole(ctx, c)
		}
		return err
	})
	if missing(err) {
		return "", "", nil
	}
	return saw, wrong, err
}

func missing(err error) bool {
	e, ok := errors.AsType[smithy.APIError](err)
	return ok && (e.ErrorCode() == "NoSuchKey" || e.ErrorCode() == "NotFound") // HEAD's answer has no code
}

// entry is a read object's expected list entry.
type entry struct {
	etag string
	size int64
}

func (h *s3Holding) whole(ctx context.Context, c *s3.Client) (saw, wrong string, as entry, err error) {
	out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: &h.s.env.cfg.Bucket, Key: &h.key})
	if err != nil {
		return "", "", as, err
	}
	defer func() { _ = out.Body.Close() }()
	saw, wrong, err = check(out.Body, out.Metadata["op"])
	return saw, wrong, entry{etag: aws.ToString(out.ETag), size: aws.ToInt64(out.ContentLength)}, err
}

func (h *s3Holding) head(ctx context.Context, c *s3.Client) (saw, wrong string, err error) {
	out, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &h.s.env.cfg.Bucket, Key: &h.key})
	if err != nil {
		return "", "", err
	}
	if out.Metadata["op"] == "" {
		return "", "an object without the metadata op", nil
	}
	return out.Metadata["op"], "", nil
}

// part reads a range: from an offset on, or the last bytes. If the object is too small, it reads the whole.
func (h *s3Holding) part(ctx context.Context, c *s3.Client) (saw, wrong string, err error) {
	from, length := int64(h.s.env.dice.below(100<<10)), int64(1+h.s.env.dice.below(300<<10))
	asked, last := fmt.Sprintf("bytes=%d-%d", from, from+length-1), h.s.env.dice.chance(3)
	if last {
		asked = fmt.Sprintf("bytes=-%d", length)
	}
	out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: &h.s.env.cfg.Bucket, Key: &h.key, Range: &asked})
	if e, ok := errors.AsType[smithy.APIError](err); ok && e.ErrorCode() == "InvalidRange" {
		saw, wrong, _, err = h.whole(ctx, c)
		return saw, wrong, err
	}
	if err != nil {
		return "", "", err
	}
	defer func() { _ = out.Body.Close() }()
	var first, end, size int64
	_, _ = fmt.Sscanf(aws.ToString(out.ContentRange), "bytes %d-%d/%d", &first, &end, &size)
	if last {
		length = min(length, size)
		from = size - length
	}
	length = min(length, size-from)
	if op := out.Metadata["op"]; first != from || end != from+length-1 {
		return op, fmt.Sprintf("asked for %s of %s, got %q", asked, op, aws.ToString(out.ContentRange)), nil
	}
	return checkRange(out.Body, out.Metadata["op"], from, length, size)
}

// listed reads the object and looks it up in the list. No object is deleted, and an equal ETag implies an equal size.
func (h *s3Holding) listed(ctx context.Context, c *s3.Client) (saw, wrong string, err error) {
	saw, wrong, as, err := h.whole(ctx, c)
	if err != nil || wrong != "" {
		return saw, wrong, err
	}
	list, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &h.s.env.cfg.Bucket, Prefix: &h.key})
	if err != nil {
		return "", "", err
	}
	for _, o := range list.Contents {
		if aws.ToString(o.Key) != h.key {
			continue
		}
		if size := aws.ToInt64(o.Size); aws.ToString(o.ETag) == as.etag && size != as.size {
			return saw, fmt.Sprintf("%s has %d bytes and is listed with %d", saw, as.size, size), nil
		}
		return saw, "", nil
	}
	return saw, fmt.Sprintf("%s is there and not in the list", saw), nil
}

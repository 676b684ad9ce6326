package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"github.com/fencegate/fencegate/robustness/history"
)

const leastPart = 5 * mebibyte // the port's minimum, except for the last part

// multipart is one upload in parts.
type multipart struct {
	h     *s3Holding
	op    string
	id    *string
	size  int
	parts []types.CompletedPart
}

// putMultipart writes an object of two or three parts. Nothing is visible before the completion, so an earlier failure
// is Failed. Sometimes the upload is aborted there.
func putMultipart(ctx context.Context, h *s3Holding, w write) error {
	dice := h.s.env.dice
	count := 2 + dice.below(4)/3
	m := &multipart{h: h, op: w.id, parts: make([]types.CompletedPart, count)}
	m.size = (count-1)*leastPart + 1 + dice.below(mebibyte)
	err := m.begin(ctx)
	if err == nil {
		w.pause(ctx)
		err = m.upload(ctx, w)
	}
	if err == nil && dice.chance(12) {
		err = &failure{outcome: history.Failed, code: "aborted", err: errors.New("the upload was given up")}
	}
	if err != nil {
		if dice.chance(2) {
			m.abort(ctx)
		}
		return h.failed(err)
	}
	w.pause(ctx)
	return m.complete(ctx)
}

func (m *multipart) begin(ctx context.Context) error {
	return m.h.call(ctx, func(ctx context.Context, c *s3.Client) error {
		out, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
			Bucket: &m.h.s.env.cfg.Bucket, Key: &m.h.key, Metadata: map[string]string{"op": m.op},
		})
		if err == nil {
			m.id = out.UploadId
		}
		return err
	})
}

// upload sends the parts, one after the other with pauses between them, or concurrently.
func (m *multipart) upload(ctx context.Context, w write) error {
	if m.h.s.env.dice.chance(2) {
		for i := range m.parts {
			if err := m.part(ctx, i); err != nil {
				return err
			}
			w.pause(ctx)
		}
		return nil
	}
	var all errgroup.Group
	client := m.h.at
	for i := range m.parts {
		all.Go(func() error { return m.partTo(ctx, m.h.clients[client], i) })
	}
	return m.h.scrub(s3Failure(all.Wait()))
}

func (m *multipart) part(ctx context.Context, i int) error {
	return m.h.call(ctx, func(ctx context.Context, c *s3.Client) error { return m.partTo(ctx, c, i) })
}

func (m *multipart) partTo(ctx context.Context, c *s3.Client, i int) error {
	number, from := int32(i+1), int64(i)*leastPart
	out, err := c.UploadPart(ctx, &s3.UploadPartInput{
		Bucket: &m.h.s.env.cfg.Bucket, Key: &m.h.key, UploadId: m.id, PartNumber: &number,
		Body: io.NewSectionReader(bodyOf(m.op, m.size), from, min(leastPart, int64(m.size)-from)),
	})
	if err != nil {
		return fmt.Errorf("part %d: %w", number, err)
	}
	m.parts[i] = types.CompletedPart{ETag: out.ETag, PartNumber: &number}
	return nil
}

// complete completes the upload. It repeats the call if it was not answered, and
// sometimes otherwise: a repetition returns the first answer. If the fence refuses
// a repetition, the upload was not completed before, and can't be any more.
func (m *multipart) complete(ctx context.Context) error {
	first := m.completeOnce(ctx)
	f, _ := errors.AsType[*failure](first)
	unknown := f != nil && f.outcome == history.Unknown
	if first != nil && !unknown || ctx.Err() != nil || m.h.s.env.dice.chance(2) {
		return first
	}
	again := m.completeOnce(ctx)
	if first == nil || again == nil {
		return nil
	}
	if f, _ := errors.AsType[*failure](again); f != nil && fenced(f.code) {
		return again
	}
	return first
}

func (m *multipart) completeOnce(ctx context.Context) error {
	return m.h.call(ctx, func(ctx context.Context, c *s3.Client) error {
		_, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
			Bucket: &m.h.s.env.cfg.Bucket, Key: &m.h.key, UploadId: m.id,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: m.parts},
		})
		return err
	})
}

// abort aborts the upload if the gateway can be reached; otherwise the sweep removes it.
func (m *multipart) abort(ctx context.Context) {
	if m.id == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = m.h.call(ctx, func(ctx context.Context, c *s3.Client) error {
		_, err := c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
			Bucket: &m.h.s.env.cfg.Bucket, Key: &m.h.key, UploadId: m.id,
		})
		return err
	})
}

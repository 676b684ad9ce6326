package client

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

const (
	reserved = 64 << 10 // bytes: the port buffers an upload up to this size
	mebibyte = 1 << 20
)

// putSmall writes an object that the port buffers whole, sometimes of exactly the largest such size.
func putSmall(ctx context.Context, h *s3Holding, w write) error {
	size := 100 + h.s.env.dice.below(reserved-99)
	if h.s.env.dice.chance(6) {
		size = reserved + h.s.env.dice.below(2) // or the smallest that is streamed
	}
	w.pause(ctx)
	return h.putObject(ctx, bodyOf(w.id, size))
}

// putLarge writes an object that is streamed.
func putLarge(ctx context.Context, h *s3Holding, w write) error {
	size := mebibyte + h.s.env.dice.below(mebibyte)
	if h.s.env.dice.chance(10) {
		size += h.s.env.dice.below(6 * mebibyte)
	}
	if h.s.env.dice.chance(3) {
		return h.putPaced(ctx, bodyOf(w.id, size), w.pause, 1)
	}
	w.pause(ctx)
	return h.putObject(ctx, bodyOf(w.id, size))
}

func (h *s3Holding) putObject(ctx context.Context, b *body) error {
	return h.call(ctx, func(ctx context.Context, c *s3.Client) error {
		size := b.size
		_, err := c.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &h.s.env.cfg.Bucket, Key: &h.key, Body: b, ContentLength: &size, Metadata: map[string]string{"op": b.op},
		})
		return err
	})
}

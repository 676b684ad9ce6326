package client

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/robustness/history"
)

// publisher writes a row and a file in one transaction.
type publisher struct {
	*objects

	rows byPool
}

func publishing(e *env, a ask, t *term) access {
	return &publisher{newObjects(e, a, t, nil), byPool{t, e.writing}}
}

func (h *publisher) read(ctx context.Context, register string) (saw, wrong string, err error) {
	if strings.HasPrefix(register, rowKind) {
		return h.rows.read(ctx, register)
	}
	return h.objects.read(ctx, register)
}

// write stages the file, then writes the row and publishes the file in one transaction.
func (h *publisher) write(ctx context.Context, w write) error {
	staged, err := h.stage(ctx, w)
	if err != nil {
		return unwritten(err)
	}
	w.pause(ctx)
	row := w
	row.set = w.set[:1]
	publish := func() error {
		began := history.Now()
		return pgfence.InTxAll(ctx, h.rows.pool, options(w.dice), h.grants, func(tx pgx.Tx) error {
			if err := change(ctx, queries{on: tx}, row, began); err != nil {
				return err
			}
			if err := s3fence.Publish(ctx, tx, staged); err != nil {
				return err
			}
			w.pause(ctx)
			return nil
		})
	}
	err = publish()
	if errors.Is(err, fence.ErrUnknown) {
		err = h.settle(ctx, staged, publish, err)
	}
	return libraryFailure(err)
}

// settle handles a transaction of unknown outcome as programs do: it ignores it, looks it up, or runs it again, which
// is safe since a stage is published once. A refusal of the second run leaves the first one's outcome open.
func (h *publisher) settle(ctx context.Context, staged s3fence.Staged, publish func() error, unknown error) error {
	switch h.env.dice.below(4) {
	case 0:
		return unknown
	case 1:
		if err := publish(); err != nil && !errors.Is(err, s3fence.ErrPublished) {
			return unknown
		}
		return nil
	}
	err := s3fence.Outcome(ctx, h.rows.pool, staged)
	if err == nil || errors.Is(err, fence.ErrNotCommitted) {
		return err
	}
	return unknown
}

func (h *publisher) stage(ctx context.Context, w write) (staged s3fence.Staged, err error) {
	if err := h.prepare(ctx); err != nil {
		return staged, err
	}
	s := w.set[1]
	o := objectOf(s, 100+h.env.dice.below(2*reserved))
	size := o.Body.(*bytes.Reader).Size()
	ctx, p := withPace(ctx, int(size), w.pause, 1)
	defer p.end()
	if h.env.dice.chance(3) { // with a header that any S3 client can send
		out, err := do(ctx, h.objects, (*s3.Client).PutObject, o, s3.WithAPIOptions(smithyhttp.AddHeaderValue("Fencing-Stage", "true")))
		if err != nil {
			return staged, err
		}
		staged = s3fence.Staged{Bucket: *o.Bucket, Key: *o.Key, Size: size, ETag: strings.Trim(aws.ToString(out.ETag), `"`)}
		if res, ok := awsmiddleware.GetRawResponse(out.ResultMetadata).(*smithyhttp.Response); ok {
			staged.ID = res.Header.Get("Fencing-Stage")
		}
		if staged.ID == "" {
			return staged, errors.New("the answer names no stage")
		}
		return staged, nil
	}
	files, err := s3fence.New(s3fence.Config{
		Endpoint: h.env.cfg.Gateways[h.next(true)].S3, Region: h.creds.Region, AccessKeyID: h.creds.AccessKeyID,
		SecretAccessKey: h.creds.SecretAccessKey, SessionToken: h.creds.SessionToken, HTTPClient: h.env.s3,
	})
	if err != nil {
		return staged, err
	}
	staged, err = files.Stage(ctx, *o.Bucket, *o.Key, o.Body, size, s3fence.Metadata("op", s.value))
	if e, ok := errors.AsType[*s3fence.StageError](err); ok {
		err = failed(s3Outcome(e.Status, e.Code, e.Message), e.Code, err)
	}
	return staged, err
}

package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/s3fence"
	"github.com/fencegate/fencegate/robustness/history"
)

func init() { //nolint:gochecknoinits // a table of surfaces whose parts are in several files
	makers["publish"] = newPublish
}

// publishSurface writes a row and a file in one transaction.
type publishSurface struct {
	*s3Surface

	pool *pgxpool.Pool
}

func newPublish(e *env) (surface, error) {
	config, err := pgxpool.ParseConfig(e.cfg.WriterURL)
	if err != nil {
		return nil, err
	}
	pgfence.Configure(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	return &publishSurface{newS3Surface(e, nil), pool}, nil
}

func (s *publishSurface) registers(resource string) []string {
	return []string{"row:" + resource, fileRegister(resource)}
}

func (s *publishSurface) acquire(ctx context.Context, a ask) (holding, error) {
	h, err := s.hold(ctx, a)
	if err != nil {
		return nil, err
	}
	return &publishHolding{h, s.pool}, nil
}

func (s *publishSurface) close() {
	s.pool.Close()
	s.s3Surface.close()
}

type publishHolding struct {
	*s3Holding

	pool *pgxpool.Pool
}

var _ holding = (*publishHolding)(nil)

func (h *publishHolding) read(ctx context.Context, register string) (saw, wrong string, err error) {
	if !strings.HasPrefix(register, "row:") {
		return h.s3Holding.read(ctx, register)
	}
	err = h.pool.QueryRow(ctx, "SELECT value FROM judged.registers WHERE resource = $1", h.grant.Resource).Scan(&saw)
	return saw, "", err
}

// write stages the file, then writes the row and publishes the file in one transaction.
func (h *publishHolding) write(ctx context.Context, w write) error {
	staged, err := h.stage(ctx, w)
	if err != nil {
		return h.failed(err)
	}
	w.pause(ctx)
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	if dice := h.s.env.dice; dice.chance(3) {
		options.IsoLevel = []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable}[dice.below(2)]
	}
	err = h.publish(ctx, w, staged, options)
	if errors.Is(err, fence.ErrUnknown) {
		err = h.settle(ctx, w, staged, options, err)
	}
	return h.scrub(publishFailure(err))
}

func (h *publishHolding) stage(ctx context.Context, w write) (s3fence.Staged, error) {
	if err := h.prepare(ctx); err != nil {
		return s3fence.Staged{}, err
	}
	b := bodyOf(w.id, 100+h.s.env.dice.below(2*reserved))
	ctx, p := withPace(ctx, b.size, w.pause, 1)
	defer p.end()
	if h.s.env.dice.chance(3) {
		return h.stageBySDK(ctx, b)
	}
	files, err := s3fence.New(s3fence.Config{
		Endpoint: h.s.env.cfg.Gateways[h.at].S3, Region: h.creds.Region, AccessKeyID: h.creds.AccessKeyID,
		SecretAccessKey: h.creds.SecretAccessKey, SessionToken: h.creds.SessionToken, HTTPClient: h.s.http,
	})
	if err != nil {
		return s3fence.Staged{}, err
	}
	h.at = (h.at + 1) % len(h.clients)
	staged, err := files.Stage(ctx, h.s.env.cfg.Bucket, h.key, b, b.size, s3fence.Metadata("op", w.id))
	if e, ok := errors.AsType[*s3fence.StageError](err); ok {
		return staged, &failure{outcome: s3Outcome(e.Status, e.Code, e.Message), code: e.Code, err: err}
	}
	return staged, err
}

// stageBySDK stages with a header that any S3 client can send.
func (h *publishHolding) stageBySDK(ctx context.Context, b *body) (staged s3fence.Staged, err error) {
	staged = s3fence.Staged{Bucket: h.s.env.cfg.Bucket, Key: h.key, Size: b.size}
	err = h.call(ctx, func(ctx context.Context, c *s3.Client) error {
		out, err := c.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &staged.Bucket, Key: &staged.Key, Body: b, Metadata: map[string]string{"op": b.op},
		}, s3.WithAPIOptions(smithyhttp.AddHeaderValue("Fencing-Stage", "true")))
		if err != nil {
			return err
		}
		if res, ok := awsmiddleware.GetRawResponse(out.ResultMetadata).(*smithyhttp.Response); ok {
			staged.ID = res.Header.Get("Fencing-Stage")
		}
		staged.ETag = strings.Trim(aws.ToString(out.ETag), `"`)
		return nil
	})
	if err == nil && staged.ID == "" {
		err = errors.New("the answer names no stage")
	}
	return staged, err
}

func (h *publishHolding) publish(ctx context.Context, w write, staged s3fence.Staged, options pgx.TxOptions) error {
	return pgfence.InTxWith(ctx, h.pool, options, h.grant, func(tx pgx.Tx) error {
		const set = "UPDATE judged.registers SET value = $1, token = $2 WHERE resource = $3"
		tag, err := tx.Exec(ctx, set, w.id, h.token(), h.grant.Resource)
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return fmt.Errorf("%d rows of %s", tag.RowsAffected(), h.grant.Resource)
		}
		w.pause(ctx)
		if err := s3fence.Publish(ctx, tx, staged); err != nil {
			return err
		}
		w.pause(ctx)
		return nil
	})
}

// settle handles a transaction of unknown outcome as programs do: it ignores it, looks it up, or runs it again, which
// is safe since a stage is published once. A refusal of the second run leaves the first one's outcome open.
func (h *publishHolding) settle(
	ctx context.Context, w write, staged s3fence.Staged, options pgx.TxOptions, unknown error,
) error {
	switch h.s.env.dice.below(4) {
	case 0:
		return unknown
	case 1:
		err := h.publish(ctx, w, staged, options)
		if err == nil || errors.Is(err, s3fence.ErrPublished) {
			return nil
		}
		return unknown
	}
	err := s3fence.Outcome(ctx, h.pool, staged)
	if err == nil || errors.Is(err, fence.ErrNotCommitted) {
		return err
	}
	return unknown
}

// publishFailure classifies an error of InTx: unknown if it says so, or if another session ended the transaction;
// otherwise nothing was written.
func publishFailure(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{outcome: history.Failed, err: err}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		f.code = e.Code
	}
	if code, ok := fence.CodeOf(err); ok {
		f.outcome, f.code = history.Refused, code.SQLState
	}
	if errors.Is(err, fence.ErrUnknown) || errors.Is(err, pgfence.ErrTxEnded) {
		f.outcome = history.Unknown
	}
	return f
}

package s3

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// An upload that is staged is stored and hashed as any other, and then recorded
// instead of committed: nobody sees it until a transaction publishes it, in
// PostgreSQL and under the same grant, together with rows.

const (
	sqlStageUpload    = "SELECT id FROM objects.stage_upload($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
	sqlStageMultipart = "SELECT id FROM objects.stage_multipart($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
	sqlStaged         = `SELECT etag, attributes, resource, token FROM objects.stages WHERE id = $1 AND bucket = $2 AND key = $3`
	sqlStages         = `SELECT s.id, s.bucket, s.key, (SELECT sum(n)::bigint FROM unnest(s.blob_sizes) n), s.etag, s.resource, s.token, s.created_at
	FROM objects.stages s WHERE s.bucket = $1 AND starts_with(s.key, $2) AND s.id > $3
	AND NOT EXISTS (SELECT FROM objects.blobs b WHERE b.id = ANY (s.blobs) AND b.state <> 'pending') ORDER BY s.id LIMIT $4`
)

// headerStage asks for an upload to be staged, and in the answer names the stage.
const headerStage = "Fencing-Stage"

// stages reports whether the request asks for its upload to be staged.
func (r request) stages() bool { return r.http != nil && r.header(headerStage) != "" }

// checkStage refuses the header where it would be ignored, or could have been
// added or taken away on the way.
func (r request) checkStage() error {
	query := r.http.QueryArgs()
	upload := r.http.IsPut() && !query.Has("tagging") || r.http.IsPost() && (query.Has("uploads") || query.Has("uploadId"))
	switch {
	case !upload:
		return s3err.GetNotImplementedErr(headerStage, "")
	case r.header(headerStage) != "true":
		return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "The header " + headerStage + " is not true. Nothing was changed."}
	case !r.signed(headerStage):
		return s3error.Error{Code: "InvalidRequest", Status: http.StatusForbidden, Message: "The header " + headerStage + " is not among the signed headers. Nothing was changed."}
	}
	return nil
}

// stage records an upload whose bytes are stored, and names it in the answer's
// header. A try that is repeated makes another stage, which nobody knows of and
// which the sweep takes.
func (b *backend) stage(c commit) (version, error) {
	id := blob.NewID()
	v, err := b.recordStage(sqlStageUpload, id, staging{
		request: c.request, target: c.target, blobs: []pgtype.UUID{uuid(c.blob)}, sizes: []int64{c.size}, etag: c.etag, attributes: c.attributes,
	})
	switch {
	case errors.Is(err, errGivenUp):
		b.forget(c.blob)
	case err != nil:
		b.giveUp(c.blob) // where it was recorded after all, nobody can publish it any more
	}
	return v, err
}

// staging is what becomes a stage.
type staging struct {
	request
	target
	blobs      []pgtype.UUID
	sizes      []int64
	etag       string
	attributes attributes
}

// recordStage answers with what the version will look like when it is published.
func (b *backend) recordStage(sql string, id blob.ID, s staging) (version, error) {
	encoded, err := json.Marshal(s.attributes)
	if err != nil {
		return version{}, fmt.Errorf("encode attributes: %w", err)
	}
	err = b.db.settle(b.base, exec(sql, uuid(id), s.bucket, s.key, s.blobs, s.sizes, s.etag, string(encoded),
		s.grant.resource, int64(s.grant.token), s.grant.sealHash, s.ifMatch, s.ifNoneMatch))
	if err != nil {
		return version{}, err
	}
	s.http.Response.Header.Set(headerStage, id.String())
	return version{ID: id, ETag: s.etag, Attributes: s.attributes, CreatedAt: time.Now()}, nil
}

// stagedBefore answers a repetition of a request that staged a multipart upload:
// to the grant that did.
func (b *backend) stagedBefore(r request, in *s3.CompleteMultipartUploadInput, otherwise error) (version, error) {
	id, err := blob.ParseID(*in.UploadId)
	if err != nil {
		return version{}, otherwise
	}
	var v version
	var text []byte
	var resource string
	var token int64
	err = b.db.once(b.base, func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, sqlStaged, uuid(id), *in.Bucket, *in.Key).Scan(&v.ETag, &text, &resource, &token)
	})
	if err = noRows(err, otherwise); err == nil {
		err = json.Unmarshal(text, &v.Attributes)
	}
	if err != nil {
		return version{}, err
	}
	if v.ETag != compositeETag(in.MultipartUpload.Parts) || token != 0 && (resource != r.grant.resource || token != int64(r.grant.token)) {
		return version{}, otherwise
	}
	r.http.Response.Header.Set(headerStage, id.String())
	return v, nil
}

// Staged is an upload that waits to be published.
type Staged struct {
	Version // what it becomes; Modified is when it was staged

	Bucket string
}

// Staged lists at most limit uploads of a bucket that wait to be published, whose
// keys begin with the prefix, in the order of their staging, after the given id.
func (c *Catalog) Staged(ctx context.Context, bucket, prefix, after string, limit int) ([]Staged, error) {
	var above blob.ID
	if after != "" {
		var err error
		if above, err = blob.ParseID(after); err != nil {
			return nil, fmt.Errorf("list staged uploads after %q: %w", after, err)
		}
	}
	_, err := c.db.rule(ctx, bucket)
	var all []Staged
	if err == nil {
		err = c.db.once(ctx, func(ctx context.Context, q querier) error {
			all = nil
			rows, err := q.Query(ctx, sqlStages, bucket, prefix, uuid(above), limit)
			if err != nil {
				return err
			}
			var s Staged
			var id [16]byte
			_, err = pgx.ForEachRow(rows, []any{&id, &s.Bucket, &s.Key, &s.Size, &s.ETag, &s.Resource, &s.Token, &s.Modified}, func() error {
				s.ID = blob.ID(id).String()
				all = append(all, s)
				return nil
			})
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list staged uploads of bucket %q: %w", bucket, err)
	}
	return all, nil
}

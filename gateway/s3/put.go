package s3

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

const (
	sqlBeginUpload   = "SELECT objects.begin_upload($1, $2, $3, $4, $5, $6)"
	sqlAbandonUpload = "SELECT objects.abandon_upload($1)"
	sqlCommitPut     = "SELECT version, modified, kept FROM objects.commit_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
	sqlIsUnnamed     = "SELECT NOT EXISTS (SELECT FROM objects.blobs WHERE id = $1 AND state <> 'condemned')"
	sqlVersion       = "SELECT " + versionColumns + " FROM objects.versions WHERE id = $1"
)

// errStoreFailed: the blob store failed, not the client's connection.
var errStoreFailed = errors.New("blob store failed")

// PutObject implements the front's Backend: announce a new blob, stream the
// bytes into it, then check the fence and swap the pointer in one transaction.
func (b *backend) PutObject(ctx context.Context, in s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	r := b.requestOf(ctx)
	bucket, key := strings.Clone(*in.Bucket), strings.Clone(*in.Key)
	out, err := b.put(r, bucket, key, in)
	if err != nil {
		return s3response.PutObjectOutput{}, b.fail(r, bucket, "PutObject", err)
	}
	return out, nil
}

func (b *backend) put(r request, bucket, key string, in s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	cond, err := putConditions(in.IfMatch, in.IfNoneMatch)
	if err == nil {
		err = refuseUnsupported(r)
	}
	if err == nil {
		err = r.checkForm(key)
	}
	if err == nil && (in.ContentLength == nil || *in.ContentLength < 0) {
		err = s3err.GetAPIError(s3err.ErrMissingContentLength)
	}
	if err == nil {
		err = b.needGrant(&r, bucket, key)
	}
	if err != nil {
		return s3response.PutObjectOutput{}, err
	}
	tags, err := tagsOf(in.Tagging)
	if err != nil {
		return s3response.PutObjectOutput{}, err
	}
	if err := r.cutForm(&in); err != nil {
		return s3response.PutObjectOutput{}, err
	}
	body, err := newBody(in)
	if err == nil {
		err = attributesOf(in, noBody, tags).check()
	}
	if err != nil {
		return s3response.PutObjectOutput{}, err
	}
	v, err := b.upload(r, target{bucket: bucket, key: key, conditions: cond, size: *in.ContentLength}, body,
		func() attributes { return attributesOf(in, body, tags) })
	if err != nil {
		return s3response.PutObjectOutput{}, err
	}
	sums := checksumsOf(v.Attributes)
	return s3response.PutObjectOutput{
		ETag: quoted(v.ETag), VersionID: text(v.shownID()), ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme,
		ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256, ChecksumType: sums.kind,
	}, nil
}

// target is what an upload writes to.
type target struct {
	conditions
	bucket, key string
	size        int64 // announced, in bytes
}

// upload stores the body as a blob, and commits. The attributes are asked for
// when the body has been read.
func (b *backend) upload(r request, t target, body *body, attributes func() attributes) (version, error) {
	if t.size <= maxWhole {
		return b.uploadWhole(r, t, body, attributes)
	}
	id, err := b.announce(r, t.bucket, t.key)
	if err != nil {
		return version{}, err
	}
	if err := b.stream(id, body, t.size); err != nil {
		b.discard(id)
		return version{}, err
	}
	return b.commit(commit{request: r, target: t, blob: id, etag: body.etag(), attributes: attributes()})
}

// announce makes a new blob known, and refuses at once what the commit would
// refuse.
func (b *backend) announce(r request, bucket, key string) (blob.ID, error) {
	id := blob.NewID()
	return id, b.db.settle(b.base, exec(sqlBeginUpload, uuid(id), bucket, key, r.grant.resource, int64(r.grant.token), r.grant.sealHash))
}

// maxWhole is how many bytes of a body are read before anything is stored: of a
// small one the commit alone may say whether it is refused.
const maxWhole = 64 << 10

var wholes = sync.Pool{New: func() any { return new([maxWhole]byte) }}

// uploadWhole stores a body that it has read, as a reserved blob. Where that had
// been given up, the body is still there for another try.
func (b *backend) uploadWhole(r request, t target, body *body, attributes func() attributes) (version, error) {
	buf := wholes.Get().(*[maxWhole]byte)
	defer wholes.Put(buf)
	data := buf[:t.size]
	if err := body.readWhole(data); err != nil {
		return version{}, fault(body, t.size, err)
	}
	if err := b.owned(b.base); err != nil {
		return version{}, fault(body, t.size, err)
	}
	c := commit{request: r, target: t, etag: body.etag(), attributes: attributes()}
	if id, ok := b.reserve.take(); ok {
		c.blob = id
		v, err := b.putWhole(c, data, b.reserve.places.Fill)
		if !errors.Is(err, errGivenUp) && !errors.Is(err, blob.ErrNotFound) && !errors.Is(err, blob.ErrFilled) {
			return v, err
		}
		b.reserve.drop()
	}
	id, err := b.announce(r, t.bucket, t.key)
	if err != nil {
		return version{}, err
	}
	c.blob = id
	return b.putWhole(c, data, b.cfg.Store.Put)
}

// putWhole stores the bytes and commits.
func (b *backend) putWhole(c commit, data []byte, store func(context.Context, blob.ID, io.Reader, int64) error) (version, error) {
	all := bytes.NewReader(data)
	err := store(b.base, c.blob, all, c.size)
	if err == nil && all.Len() > 0 {
		err = fmt.Errorf("%w: the store left %d bytes unread", blob.ErrSize, all.Len())
	}
	if err != nil {
		b.discard(c.blob)
		return version{}, fmt.Errorf("%w: %w", errStoreFailed, err)
	}
	return b.commit(c)
}

// stream stores the body's bytes as a blob, holding no transaction.
func (b *backend) stream(id blob.ID, body *body, size int64) error {
	err := b.owned(b.base)
	if err == nil {
		err = b.cfg.Store.Put(b.base, id, body, size)
	}
	if err == nil {
		err = body.finish(size)
	}
	return fault(body, size, err)
}

// fault says what went wrong with a body, or with storing it.
func fault(body *body, size int64, err error) error {
	switch {
	case err == nil:
		return nil
	case body.err != nil && !body.inside:
		if e, ok := errors.AsType[s3err.S3Error](body.err); ok {
			return e // a digest that does not fit, a malformed chunk
		}
		return s3error.Error{
			Code: "RequestTimeout", Status: http.StatusBadRequest,
			Message: "The connection was lost or stalled before the whole body was read. Nothing was stored.",
		}
	case errors.Is(err, blob.ErrSize):
		return s3err.GetAPIError(s3err.ErrIncompleteBody)
	case errors.Is(err, blob.ErrTooLarge):
		return s3err.GetEntityTooLargeErr(size, blob.MaxS3Blob)
	case errors.Is(err, errDatabaseAway):
		return err
	}
	return fmt.Errorf("%w: %w", errStoreFailed, err)
}

// discard takes back an upload that no commit was or will be asked for, so that
// its bytes can go also where its row has.
func (b *backend) discard(id blob.ID) {
	if gone, _ := b.giveUp(id); !gone {
		b.forget(id)
	}
}

// giveUp takes back a pending upload: first its row, so that no commit can make
// it live, then its bytes. Gone: nothing will ever point at it. Where it is not gone
// and answered, that lasts: it had been committed, or was given up before. What
// fails here is left to the sweep.
func (b *backend) giveUp(id blob.ID) (gone, answered bool) {
	err := b.db.once(b.base, func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, sqlAbandonUpload, uuid(id)).Scan(&gone)
	})
	if err == nil && gone {
		b.erase(id)
	}
	if err != nil {
		b.cfg.Logger.Warn("s3: an upload could not be given up; the sweep will", "blob", id, "error", err)
	}
	return gone, err == nil
}

// commit is what becomes a version.
type commit struct {
	request
	target
	blob       blob.ID
	etag       string
	attributes attributes
}

// commit checks the fence and swaps the pointer. The version that it returns is
// the one that this request produced, also where an earlier attempt of the same
// request had been committed already.
func (b *backend) commit(c commit) (version, error) {
	if c.stages() {
		return b.stage(c)
	}
	text, err := json.Marshal(c.attributes)
	if err != nil {
		return version{}, fmt.Errorf("encode attributes: %w", err)
	}
	v := version{
		ID: blob.NewID(), Blobs: [][16]byte{c.blob}, BlobSizes: []int64{c.size}, Size: c.size, ETag: c.etag, Attributes: c.attributes,
	}
	var made [16]byte
	err = b.decide(func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, sqlCommitPut, uuid(v.ID), c.bucket, c.key, uuid(c.blob), c.size, c.etag, string(text),
			c.grant.resource, int64(c.grant.token), c.grant.sealHash, nullable(c.invocation), c.ifMatch, c.ifNoneMatch).Scan(&made, &v.CreatedAt, &v.Kept)
	})
	if err == nil && made == v.ID {
		return v, nil
	}
	if err == nil {
		b.forget(c.blob) // an earlier attempt's bytes stand for this request
		if v, err = b.versionOf(made); err != nil {
			return version{}, &unknownError{cause: err}
		}
		return v, nil
	}
	if errors.Is(err, errGivenUp) {
		b.forget(c.blob) // the sweep had given it up, and its row may be gone: nobody else knows these bytes
		return version{}, errGivenUp
	}
	gone, answered := b.giveUp(c.blob)
	if gone {
		if unknown, ok := errors.AsType[*unknownError](err); ok {
			err = unknown.cause // known now: it can't take effect any more
		}
		return version{}, err
	}
	if answered {
		if stands, lost := b.versionOf(v.ID); lost == nil {
			return stands, nil // it did take effect
		}
	}
	return version{}, err
}

func (b *backend) versionOf(id [16]byte) (v version, err error) {
	err = b.db.once(b.base, func(ctx context.Context, q querier) error {
		return v.scan(q.QueryRow(ctx, sqlVersion, uuid(id)))
	})
	return v, err
}

// forget deletes the bytes of a blob that nothing can point at: its row is
// condemned, or not there. That is asked even where it should be so, for a copy of
// this process may have used the same id. What fails is left to the sweep.
func (b *backend) forget(id blob.ID) {
	var unnamed bool
	err := b.db.once(b.base, func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, sqlIsUnnamed, uuid(id)).Scan(&unnamed)
	})
	if err != nil {
		b.cfg.Logger.Warn("s3: the bytes of an upload that was given up could not be deleted; the sweep will", "blob", id, "error", err)
	}
	if unnamed {
		b.erase(id)
	}
}

// erase deletes the bytes of a condemned blob. What fails is left to the sweep.
func (b *backend) erase(id blob.ID) {
	if err := b.cfg.Store.Delete(b.base, id); err != nil {
		b.cfg.Logger.Warn("s3: a blob could not be deleted; the sweep will", "blob", id, "error", err)
	}
}

// conditions of a write, evaluated in its commit.
type conditions struct {
	ifMatch     *string // an ETag, "*" for any, or "!" and the ETag that must not be there
	ifNoneMatch bool
}

func putConditions(ifMatch, ifNoneMatch *string) (conditions, error) {
	switch {
	case ifMatch != nil && ifNoneMatch != nil:
		return conditions{}, s3err.GetNotImplementedErr("If-Match,If-None-Match", s3err.NmpAdditionalMessageMultipleCondHeaders)
	case ifNoneMatch != nil && strings.Contains(*ifNoneMatch, ","):
		return conditions{}, s3err.GetNotImplementedErr("If-None-Match", s3err.NmpAdditionalMessageIfNoneMatch)
	case ifNoneMatch != nil && *ifNoneMatch != "*":
		not := "!" + strings.Trim(strings.TrimPrefix(*ifNoneMatch, "W/"), `"`) // a weak one is compared weakly
		return conditions{ifMatch: &not}, nil
	case ifMatch != nil:
		return conditions{ifMatch: wantedETag(*ifMatch)}, nil
	}
	return conditions{ifNoneMatch: ifNoneMatch != nil}, nil
}

// wantedETag is an ETag for PostgreSQL, where one that begins with "!" must not be
// there. No object's does, and with a blank before it, it is none's.
func wantedETag(etag string) *string {
	etag = strings.Clone(strings.Trim(etag, `"`))
	if strings.HasPrefix(etag, "!") {
		etag = " " + etag
	}
	return &etag
}

// refuseUnsupported refuses what would otherwise be silently ignored.
func refuseUnsupported(r request) error {
	for _, header := range []string{
		"X-Amz-Server-Side-Encryption", "X-Amz-Server-Side-Encryption-Customer-Algorithm", "X-Amz-Grant-Read", "X-Amz-Grant-Full-Control",
		"X-Amz-Grant-Read-Acp", "X-Amz-Grant-Write-Acp", "X-Amz-Object-Lock-Mode", "X-Amz-Object-Lock-Legal-Hold",
		"X-Amz-Object-Lock-Retain-Until-Date", "X-Amz-Website-Redirect-Location", "X-Amz-Write-Offset-Bytes",
	} {
		if r.header(header) != "" {
			return s3err.GetNotImplementedErr(header, "")
		}
	}
	if acl := r.header("X-Amz-Acl"); acl != "" && acl != "private" && acl != "bucket-owner-full-control" {
		return s3err.GetNotImplementedErr("X-Amz-Acl", "")
	}
	if class := r.header("X-Amz-Storage-Class"); class != "" && class != "STANDARD" {
		return s3err.GetNotImplementedErr("X-Amz-Storage-Class", "")
	}
	return nil
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func quoted(etag string) string { return `"` + etag + `"` }

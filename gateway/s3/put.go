package s3

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/objects"
)

// PutObject implements versitygw's Backend: it announces a new blob, streams the bytes into it, then checks the fence
// and swaps the pointer in one transaction.
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
	if err == nil && (in.ContentLength == nil || *in.ContentLength < 0) {
		err = s3err.GetAPIError(s3err.ErrMissingContentLength)
	}
	if err == nil {
		err = b.needGrant(&r, bucket, key)
	}
	if err != nil {
		return s3response.PutObjectOutput{}, err
	}
	tags, err := parseTags(in.Tagging)
	if err != nil {
		return s3response.PutObjectOutput{}, err
	}
	body, err := newBody(in)
	attributes := attributesOf(in, tags)
	if err == nil {
		err = checkAttributes(attributes)
	}
	if err != nil {
		return s3response.PutObjectOutput{}, err
	}
	v, err := b.writer.Put(b.base, objects.Put{
		Change: r.change(bucket, key, cond), Size: *in.ContentLength, Body: body, Stage: r.stages(), Doubted: r.expired != nil,
		Attributes: func() objects.Attributes {
			attributes.ChecksumAlgorithm, attributes.Checksum = body.Checksum()
			return attributes
		},
	})
	if err != nil {
		return s3response.PutObjectOutput{}, err
	}
	if r.stages() {
		r.nameStage(v)
	}
	sums := checksumsOf(v.Attributes.ChecksumAlgorithm, v.Attributes.Checksum)
	return s3response.PutObjectOutput{
		ETag: quoted(v.ETag), VersionID: aws.ToString(v.ShownID()), ChecksumCRC32: sums.crc32, ChecksumCRC32C: sums.crc32c, ChecksumCRC64NVME: sums.crc64nvme,
		ChecksumSHA1: sums.sha1, ChecksumSHA256: sums.sha256, ChecksumType: sums.kind,
	}, nil
}

func putConditions(ifMatch, ifNoneMatch *string) (objects.Conditions, error) {
	switch {
	case ifMatch != nil && ifNoneMatch != nil:
		return objects.Conditions{}, s3err.GetNotImplementedErr("If-Match,If-None-Match", s3err.NmpAdditionalMessageMultipleCondHeaders)
	case ifNoneMatch != nil && strings.Contains(*ifNoneMatch, ","):
		return objects.Conditions{}, s3err.GetNotImplementedErr("If-None-Match", s3err.NmpAdditionalMessageIfNoneMatch)
	case ifNoneMatch != nil && *ifNoneMatch != "*":
		not := "!" + strings.Trim(strings.TrimPrefix(*ifNoneMatch, "W/"), `"`) // a weak one is compared weakly
		return objects.Conditions{IfMatch: &not}, nil
	case ifMatch != nil:
		return objects.Conditions{IfMatch: wantedETag(*ifMatch)}, nil
	}
	return objects.Conditions{IfNoneMatch: ifNoneMatch != nil}, nil
}

// wantedETag prepares an ETag for PostgreSQL, where a leading "!" means "must not match". No object's ETag begins with
// "!", so a blank before it makes it match none.
func wantedETag(etag string) *string {
	etag = strings.Clone(strings.Trim(etag, `"`))
	if strings.HasPrefix(etag, "!") {
		etag = " " + etag
	}
	return &etag
}

// refuseUnsupported refuses headers that would otherwise be ignored.
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

// PutObjectTagging implements versitygw's Backend. It checks the fence and changes the version's tags in one
// transaction.
func (b *backend) PutObjectTagging(ctx context.Context, bucket, key, versionID string, tags map[string]string) error {
	r := b.requestOf(ctx)
	if err := b.putTags(r, bucket, key, versionID, tags); err != nil {
		return b.fail(r, bucket, "PutObjectTagging", err)
	}
	return nil
}

// DeleteObjectTagging implements versitygw's Backend.
func (b *backend) DeleteObjectTagging(ctx context.Context, bucket, key, versionID string) error {
	r := b.requestOf(ctx)
	if err := b.putTags(r, bucket, key, versionID, nil); err != nil {
		return b.fail(r, bucket, "DeleteObjectTagging", err)
	}
	return nil
}

func (b *backend) putTags(r request, bucket, key, versionID string, tags map[string]string) error {
	err := objects.CheckVersionID(versionID)
	if err == nil {
		err = checkAttributes(objects.Attributes{Tags: tags})
	}
	if err == nil {
		err = b.needGrant(&r, bucket, key)
	}
	if err != nil {
		return err
	}
	return b.catalog.PutTags(b.base, r.change(bucket, key, objects.Conditions{}), versionID, tags)
}

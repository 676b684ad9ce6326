package s3

import (
	"context"
	"strings"

	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/objects"
)

const maxTags = 10

// tagsOf parses the header x-amz-tagging.
func tagsOf(header *string) (map[string]string, error) {
	text := ""
	if header != nil {
		text = strings.Clone(*header)
	}
	tags, err := front.ParseObjectTags(text)
	if err == nil && len(tags) > maxTags {
		err = s3err.GetAPIError(s3err.ErrObjectTaggingLimited)
	}
	return tags, err
}

// GetObjectTagging implements versitygw's Backend.
func (b *backend) GetObjectTagging(ctx context.Context, bucket, key, versionID string) (map[string]string, error) {
	v, err := b.reader.Find(b.base, bucket, key, versionID)
	if err != nil {
		return nil, b.fail(b.requestOf(ctx), bucket, "GetObjectTagging", err)
	}
	return v.Attributes.Tags, nil
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

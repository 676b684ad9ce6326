package s3

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v3"
	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlPutTags = "SELECT objects.put_tags($1, $2, $3, $4, $5, $6, $7, $8, $9)"

	maxTags = 10
)

// tagsOf reads the header x-amz-tagging.
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

// GetObjectTagging implements the front's Backend.
func (b *backend) GetObjectTagging(ctx context.Context, bucket, key, versionID string) (map[string]string, error) {
	v, err := b.find(bucket, key, versionID)
	if err != nil {
		return nil, b.fail(b.requestOf(ctx), bucket, "GetObjectTagging", err)
	}
	return v.Attributes.Tags, nil
}

// sortTags gives tags an order, which the front's answer has not.
func sortTags(c fiber.Ctx) {
	res := c.Response()
	if !c.Request().Header.IsGet() || !c.Request().URI().QueryArgs().Has("tagging") || res.StatusCode() != fiber.StatusOK || res.IsBodyStream() {
		return
	}
	var tags s3response.Tagging
	if xml.Unmarshal(res.Body(), &tags) != nil || len(tags.TagSet.Tags) < 2 {
		return
	}
	slices.SortFunc(tags.TagSet.Tags, func(a, b s3response.Tag) int { return strings.Compare(a.Key, b.Key) })
	if sorted, err := xml.Marshal(tags); err == nil {
		res.SetBody(append([]byte(xml.Header), sorted...))
	}
}

// PutObjectTagging implements the front's Backend: the fence check and the
// change of the version's tags in one transaction.
func (b *backend) PutObjectTagging(ctx context.Context, bucket, key, versionID string, tags map[string]string) error {
	r := b.requestOf(ctx)
	if err := b.putTags(r, bucket, key, versionID, tags); err != nil {
		return b.fail(r, bucket, "PutObjectTagging", err)
	}
	return nil
}

// DeleteObjectTagging implements the front's Backend.
func (b *backend) DeleteObjectTagging(ctx context.Context, bucket, key, versionID string) error {
	r := b.requestOf(ctx)
	if err := b.putTags(r, bucket, key, versionID, nil); err != nil {
		return b.fail(r, bucket, "DeleteObjectTagging", err)
	}
	return nil
}

func (b *backend) putTags(r request, bucket, key, versionID string, tags map[string]string) error {
	version, err := versionOf(versionID)
	if err == nil {
		err = attributes{Tags: tags}.check()
	}
	if err == nil {
		err = b.needGrant(&r, bucket, key)
	}
	if err != nil {
		return err
	}
	if tags == nil {
		tags = map[string]string{}
	}
	text, err := json.Marshal(tags)
	if err != nil {
		return fmt.Errorf("encode tags: %w", err)
	}
	return b.db.settle(b.base, exec(sqlPutTags, uuid(blob.NewID()), bucket, key, version, string(text),
		r.grant.resource, int64(r.grant.token), r.grant.sealHash, nullable(r.invocation)))
}

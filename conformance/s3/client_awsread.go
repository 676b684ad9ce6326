package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

func (c awsClient) get(ctx context.Context) error { return c.holds(ctx, seeded, seededText) }

func (c awsClient) ranged(ctx context.Context) error {
	got, out, err := c.read(ctx, seeded, func(in *awss3.GetObjectInput) { in.Range = aws.String("bytes=2-4") })
	if err != nil {
		return err
	}
	return errors.Join(same("the range", got, "234"), same("Content-Range", *out.ContentRange, "bytes 2-4/10"))
}

func (c awsClient) conditional(ctx context.Context) error {
	head, err := c.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: c.bucket, Key: aws.String(seeded)})
	if err != nil {
		return err
	}
	if _, _, err = c.read(ctx, seeded, func(in *awss3.GetObjectInput) { in.IfMatch = head.ETag }); err != nil {
		return err
	}
	_, _, err = c.read(ctx, seeded, func(in *awss3.GetObjectInput) { in.IfNoneMatch = head.ETag })
	if status, _ := awsReason(err); status != http.StatusNotModified {
		return fmt.Errorf("wanted 304, got %v", err) //nolint:errorlint // it may be nil
	}
	return nil
}

func (c awsClient) overrides(ctx context.Context) error {
	_, out, err := c.read(ctx, seeded, func(in *awss3.GetObjectInput) { in.ResponseContentType = aws.String("application/json") })
	if err != nil {
		return err
	}
	return same("Content-Type", *out.ContentType, "application/json")
}

func (c awsClient) head(ctx context.Context) error {
	out, err := c.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: c.bucket, Key: aws.String(seeded)})
	if err != nil {
		return err
	}
	return errors.Join(same("the length", fmt.Sprint(*out.ContentLength), "10"), same("Content-Type", *out.ContentType, "text/plain"), same("metadata", out.Metadata["by"], "conformance"))
}

// The seeded objects are listed one by one, so that there are several pages.
func (c awsClient) listV1(ctx context.Context) error {
	var keys []string
	in := &awss3.ListObjectsInput{Bucket: c.bucket, Prefix: aws.String("seed/"), MaxKeys: aws.Int32(1)}
	for {
		out, err := c.ListObjects(ctx, in)
		if err != nil {
			return err
		}
		for _, o := range out.Contents {
			keys, in.Marker = append(keys, *o.Key), o.Key
		}
		if !*out.IsTruncated {
			return same("the list", fmt.Sprint(keys), fmt.Sprint([]string{seeded, seededPart}))
		}
	}
}

func (c awsClient) listV2(ctx context.Context) error {
	var keys []string
	pages := awss3.NewListObjectsV2Paginator(c.Client, &awss3.ListObjectsV2Input{Bucket: c.bucket, Prefix: aws.String("seed/"), MaxKeys: aws.Int32(1)})
	for pages.HasMorePages() {
		out, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, o := range out.Contents {
			keys = append(keys, *o.Key)
		}
	}
	if err := same("the list", fmt.Sprint(keys), fmt.Sprint([]string{seeded, seededPart})); err != nil {
		return err
	}
	out, err := c.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{Bucket: c.bucket, Delimiter: aws.String("/"), Prefix: aws.String("se")})
	if err != nil {
		return err
	}
	if len(out.CommonPrefixes) != 1 || *out.CommonPrefixes[0].Prefix != "seed/" {
		return fmt.Errorf("the common prefixes are %v", out.CommonPrefixes)
	}
	return nil
}

func (c awsClient) listVersions(ctx context.Context) error {
	_, err := c.seededVersions(ctx)
	return err
}

func (c awsClient) seededVersions(ctx context.Context) ([]types.ObjectVersion, error) {
	out, err := c.ListObjectVersions(ctx, &awss3.ListObjectVersionsInput{Bucket: c.bucket, Prefix: aws.String(seeded)})
	if err != nil {
		return nil, err
	}
	return out.Versions, same("the number of versions", fmt.Sprint(len(out.Versions)), "2")
}

func (c awsClient) getVersion(ctx context.Context) error {
	versions, err := c.seededVersions(ctx)
	if err != nil {
		return err
	}
	got, _, err := c.read(ctx, seeded, func(in *awss3.GetObjectInput) { in.VersionId = versions[1].VersionId })
	return errors.Join(err, same("the older version", got, versionedText))
}

func (c awsClient) attributes(ctx context.Context) error {
	out, err := c.GetObjectAttributes(ctx, &awss3.GetObjectAttributesInput{
		Bucket: c.bucket, Key: aws.String(seeded), ObjectAttributes: []types.ObjectAttributes{types.ObjectAttributesObjectSize, types.ObjectAttributesChecksum},
	})
	if err != nil {
		return err
	}
	if out.Checksum == nil || out.Checksum.ChecksumSHA256 == nil {
		return errors.New("the checksum is missing")
	}
	return same("the size", fmt.Sprint(*out.ObjectSize), "10")
}

func (c awsClient) getTags(ctx context.Context) error {
	out, err := c.GetObjectTagging(ctx, &awss3.GetObjectTaggingInput{Bucket: c.bucket, Key: aws.String(seeded)})
	if err != nil {
		return err
	}
	if len(out.TagSet) != 1 || *out.TagSet[0].Key != "colour" || *out.TagSet[0].Value != "blue" {
		return fmt.Errorf("the tags are %v", out.TagSet)
	}
	return nil
}

func (c awsClient) presignedGet(ctx context.Context) error {
	req, err := awss3.NewPresignClient(c.Client).PresignGetObject(ctx, &awss3.GetObjectInput{Bucket: c.bucket, Key: aws.String(seeded)})
	if err != nil {
		return err
	}
	got, err := fetch(ctx, req.Method, req.URL, "", req.SignedHeader)
	return errors.Join(err, same("the object", got, seededText))
}

func (c awsClient) checksum(ctx context.Context) error {
	_, out, err := c.read(ctx, seeded, func(in *awss3.GetObjectInput) { in.ChecksumMode = types.ChecksumModeEnabled })
	if err != nil {
		return err
	}
	if out.ChecksumSHA256 == nil {
		return errors.New("the checksum is missing")
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	miniocreds "github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/tags"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
)

// minioGo is minio-go. Over plain HTTP it signs each chunk of an upload.
type minioGo struct {
	*minio.Core

	trailing *minio.Client // sends its checksums after the body
}

func newMinio(_ context.Context, addr string, c credentials.Credentials) (caller, error) {
	options := minio.Options{Creds: miniocreds.NewStaticV4(c.AccessKeyID, c.SecretAccessKey, c.SessionToken), Region: "us-east-1", MaxRetries: 1}
	core, err := minio.NewCore(addr, &options)
	if err != nil {
		return nil, err
	}
	options.TrailingHeaders = true
	trailing, err := minio.New(addr, &options)
	return minioGo{core, trailing}, err
}

func (minioGo) close() error { return nil }

func (m minioGo) call(ctx context.Context, operation string, in input) (a answer, err error) {
	from, source, _ := strings.Cut(in.CopySource, "/")
	var options minio.PutObjectOptions
	switch operation {
	case "PutObject":
		options.DisableContentSha256 = in.IfMatch+in.IfNoneMatch == ""
		err = put(ctx, m.Client, in, options)
	case "PutChunked":
		err = put(ctx, m.Client, in, options)
	case "PutTrailing":
		options.Checksum = minio.ChecksumCRC64NVME
		err = put(ctx, m.trailing, in, options)
	case "Upload":
		options.PartSize = partSize
		err = put(ctx, m.Client, in, options)
	case "CopyObject":
		_, err = m.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: in.Bucket, Object: in.Key}, minio.CopySrcOptions{Bucket: from, Object: source})
	case "CreateMultipartUpload":
		a.UploadID, err = m.NewMultipartUpload(ctx, in.Bucket, in.Key, options)
	case "UploadPartCopy":
		var made minio.CompletePart
		first, last := bounds(in.CopySourceRange)
		made, err = m.CopyObjectPart(ctx, from, source, in.Bucket, in.Key, in.UploadID, in.PartNumber, first, last-first+1, nil)
		a.CopyPartResult.ETag = made.ETag
	case "ListParts":
		var listed minio.ListObjectPartsResult
		listed, err = m.ListObjectParts(ctx, in.Bucket, in.Key, in.UploadID, 0, 10)
		a.Parts = make([]part, len(listed.ObjectParts))
	case "CompleteMultipartUpload":
		var parts []minio.CompletePart
		for _, p := range in.MultipartUpload.Parts {
			parts = append(parts, minio.CompletePart{PartNumber: p.PartNumber, ETag: p.ETag})
		}
		_, err = m.CompleteMultipartUpload(ctx, in.Bucket, in.Key, in.UploadID, parts, options)
	case "PutObjectTagging":
		var set *tags.Tags
		one := in.Tagging.(tagSet).TagSet[0]
		if set, err = tags.NewTags(map[string]string{one.Key: one.Value}, true); err == nil {
			err = m.PutObjectTagging(ctx, in.Bucket, in.Key, set, minio.PutObjectTaggingOptions{})
		}
	case "GetObjectTagging":
		var set *tags.Tags
		if set, err = m.GetObjectTagging(ctx, in.Bucket, in.Key, minio.GetObjectTaggingOptions{}); err == nil {
			for key, value := range set.ToMap() {
				a.TagSet = append(a.TagSet, tag{key, value})
			}
		}
	case "DeleteObjectTagging":
		err = m.RemoveObjectTagging(ctx, in.Bucket, in.Key, minio.RemoveObjectTaggingOptions{})
	case "DeleteObject":
		err = m.RemoveObject(ctx, in.Bucket, in.Key, minio.RemoveObjectOptions{VersionID: in.VersionID})
	case "DeleteObjects":
		keys := make(chan minio.ObjectInfo, len(in.Delete.Objects))
		for _, o := range in.Delete.Objects {
			keys <- minio.ObjectInfo{Key: o.Key}
		}
		close(keys)
		for refused := range m.RemoveObjects(ctx, in.Bucket, keys, minio.RemoveObjectsOptions{}) {
			err = refused.Err
		}
	case "GetObject":
		a, err = m.get(ctx, in)
	case "HeadObject":
		var info minio.ObjectInfo
		info, err = m.StatObject(ctx, in.Bucket, in.Key, minio.StatObjectOptions{Checksum: in.ChecksumMode != ""})
		a = described(info)
	case "GetObjectAttributes":
		var out *minio.ObjectAttributes
		if out, err = m.GetObjectAttributes(ctx, in.Bucket, in.Key, minio.ObjectAttributesOptions{}); err == nil {
			a.ObjectSize, a.Checksum.ChecksumSHA256 = out.ObjectSize, out.Checksum.ChecksumSHA256
		}
	case "ListObjects", "ListObjectsV2", "ListObjectVersions":
		a, err = m.list(ctx, in, minio.ListObjectsOptions{UseV1: operation == "ListObjects", WithVersions: operation == "ListObjectVersions"})
	case "PresignPutObject", "PresignGetObject":
		var u *url.URL
		if u, err = m.Presign(ctx, strings.ToUpper(operation[len("Presign"):][:3]), in.Bucket, in.Key, time.Minute, nil); err == nil {
			a.URL = u.String()
		}
	default:
		err = errNotOffered
	}
	if e, ok := errors.AsType[minio.ErrorResponse](err); ok {
		err = &refusal{e.StatusCode, e.Code}
	}
	return a, err
}

func put(ctx context.Context, c *minio.Client, in input, options minio.PutObjectOptions) error {
	if in.IfMatch != "" {
		options.SetMatchETag(in.IfMatch)
	}
	if in.IfNoneMatch != "" {
		options.SetMatchETagExcept(in.IfNoneMatch)
	}
	if in.ChecksumAlgorithm == "MD5" {
		options = minio.PutObjectOptions{SendContentMd5: true}
	}
	_, err := c.PutObject(ctx, in.Bucket, in.Key, strings.NewReader(in.Body), int64(len(in.Body)), options)
	return err
}

// bounds are those of a range.
func bounds(of string) (first, last int64) {
	_, _ = fmt.Sscanf(of, "bytes=%d-%d", &first, &last)
	return first, last
}

func (m minioGo) get(ctx context.Context, in input) (a answer, err error) {
	options := minio.GetObjectOptions{VersionID: in.VersionID, Checksum: in.ChecksumMode != ""}
	if in.Range != "" {
		err = options.SetRange(bounds(in.Range))
	}
	if in.IfMatch != "" {
		err = options.SetMatchETag(in.IfMatch)
	}
	if in.IfNoneMatch != "" {
		err = options.SetMatchETagExcept(in.IfNoneMatch)
	}
	if in.ResponseContentType != "" {
		options.SetReqParam("response-content-type", in.ResponseContentType)
	}
	if err != nil {
		return a, err
	}
	r, info, header, err := m.Core.GetObject(ctx, in.Bucket, in.Key, options)
	if err != nil {
		return a, err
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(r)
	a = described(info)
	a.Body, a.ContentRange = string(data), header.Get("Content-Range")
	return a, err
}

func described(info minio.ObjectInfo) answer {
	a := answer{ETag: info.ETag, ContentType: info.ContentType, ContentLength: int(info.Size), ChecksumSHA256: info.ChecksumSHA256, Metadata: map[string]string{}}
	for name, value := range info.UserMetadata {
		a.Metadata[strings.ToLower(name)] = value
	}
	return a
}

func (m minioGo) list(ctx context.Context, in input, options minio.ListObjectsOptions) (a answer, err error) {
	options.Prefix, options.Recursive = in.Prefix, in.Delimiter == ""
	if in.Pages {
		options.MaxKeys = 1
	}
	for info := range m.Client.ListObjects(ctx, in.Bucket, options) {
		if info.Err != nil {
			return a, info.Err
		}
		if strings.HasSuffix(info.Key, "/") {
			a.CommonPrefixes = append(a.CommonPrefixes, prefix{info.Key})
		} else if a.Contents = append(a.Contents, object{info.Key}); options.WithVersions {
			a.Versions = append(a.Versions, version{info.VersionID})
		}
	}
	return a, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/tags"
)

// minioClient is minio-go. Over plain HTTP it signs each chunk of an upload.
type minioClient struct {
	*minio.Core

	bucket   string
	trailing *minio.Client // sends its checksums after the body
}

func newMinio(context.Context) (goClient, error) {
	options := minio.Options{Creds: credentials.NewEnvAWS(), Region: "us-east-1", MaxRetries: 1}
	core, err := minio.NewCore(os.Getenv("ENDPOINT"), &options)
	if err != nil {
		return goClient{}, err
	}
	options.TrailingHeaders = true
	trailing, err := minio.New(os.Getenv("ENDPOINT"), &options)
	if err != nil {
		return goClient{}, err
	}
	c := minioClient{Core: core, bucket: os.Getenv("BUCKET"), trailing: trailing}
	return goClient{reason: minioReason, cases: map[string]func(context.Context) error{
		"put": c.put, "put with checksum": c.putChecksum, "put if none match": c.putIfNoneMatch, "put if match": c.putIfMatch,
		"multipart": c.multipart, "copy": c.copy, "part copy": c.partCopy, "put tags": c.putTags, "delete tags": c.deleteTags,
		"delete": c.delete, "delete many": c.deleteMany, "delete a version": c.deleteVersion, "presigned put": c.presignedPut,
		"chunk-signed put": c.chunkSigned, "chunk-signed put, trailing checksum": c.chunkSignedTrailing,
		"get": c.get, "range": c.ranged, "conditional get": c.conditional, "response overrides": c.overrides, "head": c.head,
		"list v1": c.listV1, "list v2": c.listV2, "list versions": c.listVersions, "get a version": c.getVersion, "attributes": c.attributes,
		"get tags": c.getTags, "presigned get": c.presignedGet, "checksum": c.checksum,
	}}, nil
}

func minioReason(err error) (status int, code string) {
	if e, ok := errors.AsType[*presignedError](err); ok {
		return e.status, e.code()
	}
	if e, ok := errors.AsType[minio.ErrorResponse](err); ok {
		return e.StatusCode, e.Code
	}
	return 0, ""
}

func (c minioClient) write(ctx context.Context, client *minio.Client, key, text string, options minio.PutObjectOptions) error {
	_, err := client.PutObject(ctx, c.bucket, key, strings.NewReader(text), int64(len(text)), options)
	if err != nil {
		return err
	}
	return c.holds(ctx, key, text, minio.GetObjectOptions{})
}

func (c minioClient) read(ctx context.Context, key string, options minio.GetObjectOptions) (string, minio.ObjectInfo, error) {
	r, info, _, err := c.Core.GetObject(ctx, c.bucket, key, options)
	if err != nil {
		return "", info, err
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(r)
	return string(data), info, err
}

func (c minioClient) holds(ctx context.Context, key, want string, options minio.GetObjectOptions) error {
	got, _, err := c.read(ctx, key, options)
	return errors.Join(err, same(key, got, want))
}

func (c minioClient) put(ctx context.Context) error {
	return c.write(ctx, c.Client, own("put"), "hello", minio.PutObjectOptions{DisableContentSha256: true})
}

func (c minioClient) putChecksum(ctx context.Context) error {
	return c.write(ctx, c.Client, own("md5"), "hello", minio.PutObjectOptions{SendContentMd5: true})
}

func (c minioClient) putIfNoneMatch(ctx context.Context) error {
	var once minio.PutObjectOptions
	once.SetMatchETagExcept("*")
	if err := c.write(ctx, c.Client, own("once"), "first", once); err != nil {
		return err
	}
	return wants(c.write(ctx, c.Client, own("once"), "second", once), minioReason, http.StatusPreconditionFailed, "PreconditionFailed")
}

func (c minioClient) putIfMatch(ctx context.Context) error {
	if err := c.write(ctx, c.Client, own("match"), "first", minio.PutObjectOptions{}); err != nil {
		return err
	}
	info, err := c.StatObject(ctx, c.bucket, own("match"), minio.StatObjectOptions{})
	if err != nil {
		return err
	}
	var match minio.PutObjectOptions
	match.SetMatchETag(info.ETag)
	if err := c.write(ctx, c.Client, own("match"), "second", match); err != nil {
		return err
	}
	return wants(c.write(ctx, c.Client, own("match"), "third", match), minioReason, http.StatusPreconditionFailed, "PreconditionFailed")
}

func (c minioClient) multipart(ctx context.Context) error {
	text := strings.Repeat("a", partSize) + "end"
	return c.write(ctx, c.Client, own("multipart"), text, minio.PutObjectOptions{PartSize: partSize})
}

func (c minioClient) chunkSigned(ctx context.Context) error {
	return c.write(ctx, c.Client, own("chunks"), strings.Repeat("b", 200_000), minio.PutObjectOptions{})
}

func (c minioClient) chunkSignedTrailing(ctx context.Context) error {
	return c.write(ctx, c.trailing, own("trailing"), strings.Repeat("b", 200_000), minio.PutObjectOptions{Checksum: minio.ChecksumCRC64NVME})
}

func (c minioClient) copy(ctx context.Context) error {
	_, err := c.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: c.bucket, Object: own("copy")}, minio.CopySrcOptions{Bucket: c.bucket, Object: seeded})
	if err != nil {
		return err
	}
	return c.holds(ctx, own("copy"), seededText, minio.GetObjectOptions{})
}

func (c minioClient) partCopy(ctx context.Context) error {
	key := own("part copy")
	id, err := c.NewMultipartUpload(ctx, c.bucket, key, minio.PutObjectOptions{})
	if err != nil {
		return err
	}
	first, err := c.CopyObjectPart(ctx, c.bucket, seededPart, c.bucket, key, id, 1, 0, partSize, nil)
	if err != nil {
		return err
	}
	second, err := c.CopyObjectPart(ctx, c.bucket, seeded, c.bucket, key, id, 2, 2, 3, nil)
	if err != nil {
		return err
	}
	if _, err = c.CompleteMultipartUpload(ctx, c.bucket, key, id, []minio.CompletePart{first, second}, minio.PutObjectOptions{}); err != nil {
		return err
	}
	return c.holds(ctx, key, strings.Repeat("\x00", partSize)+"234", minio.GetObjectOptions{})
}

func (c minioClient) putTags(ctx context.Context) error {
	set, err := tags.NewTags(map[string]string{"size": "small"}, true)
	if err != nil {
		return err
	}
	return c.PutObjectTagging(ctx, c.bucket, ownOrSeeded("put"), set, minio.PutObjectTaggingOptions{})
}

func (c minioClient) deleteTags(ctx context.Context) error {
	return c.RemoveObjectTagging(ctx, c.bucket, ownOrSeeded("put"), minio.RemoveObjectTaggingOptions{})
}

func (c minioClient) delete(ctx context.Context) error {
	return c.RemoveObject(ctx, c.bucket, ownOrSeeded("put"), minio.RemoveObjectOptions{})
}

func (c minioClient) deleteMany(ctx context.Context) error {
	keys := make(chan minio.ObjectInfo, 2)
	keys <- minio.ObjectInfo{Key: ownOrSeeded("copy")}
	keys <- minio.ObjectInfo{Key: ownOrSeeded("once")}
	close(keys)
	var first error
	for refused := range c.RemoveObjects(ctx, c.bucket, keys, minio.RemoveObjectsOptions{}) {
		first = refused.Err
	}
	return first
}

func (c minioClient) versions(ctx context.Context, key string) ([]minio.ObjectInfo, error) {
	var all []minio.ObjectInfo
	for info := range c.Client.ListObjects(ctx, c.bucket, minio.ListObjectsOptions{Prefix: key, WithVersions: true}) {
		if info.Err != nil {
			return nil, info.Err
		}
		all = append(all, info)
	}
	return all, same("the number of versions", fmt.Sprint(len(all)), "2")
}

func (c minioClient) deleteVersion(ctx context.Context) error {
	all, err := c.versions(ctx, ownOrSeeded("match"))
	if err != nil {
		return err
	}
	return c.RemoveObject(ctx, c.bucket, all[1].Key, minio.RemoveObjectOptions{VersionID: all[1].VersionID})
}

func (c minioClient) presignedPut(ctx context.Context) error {
	u, err := c.PresignedPutObject(ctx, c.bucket, own("presigned"), time.Minute)
	if err != nil {
		return err
	}
	_, err = fetch(ctx, http.MethodPut, u.String(), "hello", nil)
	return err
}

func (c minioClient) get(ctx context.Context) error {
	return c.holds(ctx, seeded, seededText, minio.GetObjectOptions{})
}

func (c minioClient) ranged(ctx context.Context) error {
	var part minio.GetObjectOptions
	if err := part.SetRange(2, 4); err != nil {
		return err
	}
	return c.holds(ctx, seeded, "234", part)
}

func (c minioClient) conditional(ctx context.Context) error {
	info, err := c.StatObject(ctx, c.bucket, seeded, minio.StatObjectOptions{})
	if err != nil {
		return err
	}
	var match, except minio.GetObjectOptions
	if err := errors.Join(match.SetMatchETag(info.ETag), except.SetMatchETagExcept(info.ETag)); err != nil {
		return err
	}
	if err := c.holds(ctx, seeded, seededText, match); err != nil {
		return err
	}
	_, _, err = c.read(ctx, seeded, except)
	if status, _ := minioReason(err); status != http.StatusNotModified {
		return fmt.Errorf("wanted 304, got %v", err) //nolint:errorlint // it may be nil
	}
	return nil
}

func (c minioClient) overrides(ctx context.Context) error {
	var options minio.GetObjectOptions
	options.SetReqParam("response-content-type", "application/json")
	_, info, err := c.read(ctx, seeded, options)
	return errors.Join(err, same("Content-Type", info.ContentType, "application/json"))
}

func (c minioClient) head(ctx context.Context) error {
	info, err := c.StatObject(ctx, c.bucket, seeded, minio.StatObjectOptions{})
	return errors.Join(err, same("the length", fmt.Sprint(info.Size), "10"), same("Content-Type", info.ContentType, "text/plain"), same("metadata", info.UserMetadata["By"], "conformance"))
}

func (c minioClient) listed(ctx context.Context, options minio.ListObjectsOptions, want ...string) error {
	var keys []string
	for info := range c.Client.ListObjects(ctx, c.bucket, options) {
		if info.Err != nil {
			return info.Err
		}
		keys = append(keys, info.Key)
	}
	return same("the list", fmt.Sprint(keys), fmt.Sprint(want))
}

func (c minioClient) listV1(ctx context.Context) error {
	return c.listed(ctx, minio.ListObjectsOptions{Prefix: "seed/", MaxKeys: 1, UseV1: true, Recursive: true}, seeded, seededPart)
}

func (c minioClient) listV2(ctx context.Context) error {
	return errors.Join(c.listed(ctx, minio.ListObjectsOptions{Prefix: "seed/", MaxKeys: 1, Recursive: true}, seeded, seededPart),
		c.listed(ctx, minio.ListObjectsOptions{Prefix: "se"}, "seed/"))
}

func (c minioClient) listVersions(ctx context.Context) error {
	_, err := c.versions(ctx, seeded)
	return err
}

func (c minioClient) getVersion(ctx context.Context) error {
	all, err := c.versions(ctx, seeded)
	if err != nil {
		return err
	}
	return c.holds(ctx, seeded, versionedText, minio.GetObjectOptions{VersionID: all[1].VersionID})
}

func (c minioClient) attributes(ctx context.Context) error {
	out, err := c.GetObjectAttributes(ctx, c.bucket, seeded, minio.ObjectAttributesOptions{})
	if err != nil {
		return err
	}
	if out.Checksum.ChecksumSHA256 == "" {
		return errors.New("the checksum is missing")
	}
	return same("the size", fmt.Sprint(out.ObjectSize), "10")
}

func (c minioClient) getTags(ctx context.Context) error {
	set, err := c.GetObjectTagging(ctx, c.bucket, seeded, minio.GetObjectTaggingOptions{})
	if err != nil {
		return err
	}
	return same("the tags", set.String(), "colour=blue")
}

func (c minioClient) presignedGet(ctx context.Context) error {
	u, err := c.PresignedGetObject(ctx, c.bucket, seeded, time.Minute, url.Values{})
	if err != nil {
		return err
	}
	got, err := fetch(ctx, http.MethodGet, u.String(), "", nil)
	return errors.Join(err, same("the object", got, seededText))
}

func (c minioClient) checksum(ctx context.Context) error {
	info, err := c.StatObject(ctx, c.bucket, seeded, minio.StatObjectOptions{Checksum: true})
	if err == nil && info.ChecksumSHA256 == "" {
		err = errors.New("the checksum is missing")
	}
	return err
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	awscreds "github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/s3stack"
)

// awsClient is aws-sdk-go-v2, configured from the environment.
type awsClient struct {
	*awss3.Client

	bucket *string
}

func newAWS(ctx context.Context) (goClient, error) {
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return goClient{}, err
	}
	name := os.Getenv("BUCKET")
	c := awsClient{bucket: &name, Client: awss3.NewFromConfig(cfg, func(o *awss3.Options) {
		o.BaseEndpoint, o.UsePathStyle, o.RetryMaxAttempts = aws.String("http://"+os.Getenv("ENDPOINT")), true, 1
	})}
	return goClient{reason: awsReason, cases: map[string]func(context.Context) error{
		"put": c.put, "put with checksum": c.putChecksum, "put if none match": c.putIfNoneMatch, "put if match": c.putIfMatch,
		"multipart": c.multipart, "copy": c.copy, "part copy": c.partCopy, "put tags": c.putTags, "delete tags": c.deleteTags,
		"delete": c.delete, "delete many": c.deleteMany, "delete a version": c.deleteVersion, "presigned put": c.presignedPut,
		"get": c.get, "range": c.ranged, "conditional get": c.conditional, "response overrides": c.overrides, "head": c.head,
		"list v1": c.listV1, "list v2": c.listV2, "list versions": c.listVersions, "get a version": c.getVersion, "attributes": c.attributes,
		"get tags": c.getTags, "presigned get": c.presignedGet, "checksum": c.checksum,
	}}, nil
}

func awsReason(err error) (status int, code string) {
	if e, ok := errors.AsType[*presignedError](err); ok {
		return e.status, e.code()
	}
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		code = e.ErrorCode()
	}
	if e, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok {
		status = e.HTTPStatusCode()
	}
	return status, code
}

// seed writes the objects that all clients read.
func seed(ctx context.Context, srv *s3stack.Server, c credentials.Credentials) error {
	name := bucket
	a := awsClient{bucket: &name, Client: awss3.New(awss3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://" + srv.Addr), UsePathStyle: true,
		Credentials: awscreds.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, c.SessionToken),
	})}
	for _, text := range []string{versionedText, seededText} {
		_, err := a.PutObject(ctx, &awss3.PutObjectInput{
			Bucket: a.bucket, Key: aws.String(seeded), Body: strings.NewReader(text), ContentType: aws.String("text/plain"), Tagging: aws.String("colour=blue"),
			ChecksumAlgorithm: types.ChecksumAlgorithmSha256, Metadata: map[string]string{"by": "conformance"},
		})
		if err != nil {
			return err
		}
	}
	_, err := a.PutObject(ctx, &awss3.PutObjectInput{Bucket: a.bucket, Key: aws.String(seededPart), Body: bytes.NewReader(make([]byte, partSize))})
	return err
}

func (c awsClient) write(ctx context.Context, key, text string, more ...func(*awss3.PutObjectInput)) error {
	in := &awss3.PutObjectInput{Bucket: c.bucket, Key: &key, Body: strings.NewReader(text)}
	for _, m := range more {
		m(in)
	}
	if _, err := c.PutObject(ctx, in); err != nil {
		return err
	}
	return c.holds(ctx, key, text)
}

func (c awsClient) read(ctx context.Context, key string, more ...func(*awss3.GetObjectInput)) (string, *awss3.GetObjectOutput, error) {
	in := &awss3.GetObjectInput{Bucket: c.bucket, Key: &key}
	for _, m := range more {
		m(in)
	}
	out, err := c.GetObject(ctx, in)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = out.Body.Close() }()
	data, err := io.ReadAll(out.Body)
	return string(data), out, err
}

func (c awsClient) holds(ctx context.Context, key, want string) error {
	got, _, err := c.read(ctx, key)
	return errors.Join(err, same(key, got, want))
}

func (c awsClient) put(ctx context.Context) error { return c.write(ctx, own("put"), "hello") }

func (c awsClient) putChecksum(ctx context.Context) error {
	for _, algorithm := range types.ChecksumAlgorithm("").Values() {
		switch algorithm {
		case types.ChecksumAlgorithmCrc32, types.ChecksumAlgorithmCrc32c, types.ChecksumAlgorithmCrc64nvme, types.ChecksumAlgorithmSha1, types.ChecksumAlgorithmSha256:
		default:
			continue // the port does not support it, and reports that
		}
		err := c.write(ctx, own("checksum-"+string(algorithm)), "hello", func(in *awss3.PutObjectInput) { in.ChecksumAlgorithm = algorithm })
		if err != nil {
			return err
		}
	}
	return nil
}

func (c awsClient) putIfNoneMatch(ctx context.Context) error {
	once := func(in *awss3.PutObjectInput) { in.IfNoneMatch = aws.String("*") }
	if err := c.write(ctx, own("once"), "first", once); err != nil {
		return err
	}
	return wants(c.write(ctx, own("once"), "second", once), awsReason, http.StatusPreconditionFailed, "PreconditionFailed")
}

func (c awsClient) putIfMatch(ctx context.Context) error {
	if err := c.write(ctx, own("match"), "first"); err != nil {
		return err
	}
	head, err := c.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: c.bucket, Key: aws.String(own("match"))})
	if err != nil {
		return err
	}
	match := func(in *awss3.PutObjectInput) { in.IfMatch = head.ETag }
	if err := c.write(ctx, own("match"), "second", match); err != nil {
		return err
	}
	return wants(c.write(ctx, own("match"), "third", match), awsReason, http.StatusPreconditionFailed, "PreconditionFailed")
}

// wants turns an expected refusal into success, and everything else into an error.
func wants(err error, reason func(error) (int, string), status int, code string) error {
	if err == nil {
		return fmt.Errorf("it was not refused with %s", code)
	}
	if s, c := reason(err); s == status && c == code {
		return nil
	}
	return fmt.Errorf("wanted %s, got %s", code, err) //nolint:errorlint // its own code must not be seen
}

// upload makes a multipart upload. part uploads each part.
func (c awsClient) upload(ctx context.Context, key string, part func(id *string, number int32) (etag *string, err error)) error {
	begun, err := c.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{Bucket: c.bucket, Key: &key})
	if err != nil {
		return err
	}
	var parts []types.CompletedPart
	for _, number := range []int32{1, 2} {
		etag, err := part(begun.UploadId, number)
		if err != nil {
			return err
		}
		parts = append(parts, types.CompletedPart{ETag: etag, PartNumber: &number})
	}
	listed, err := c.ListParts(ctx, &awss3.ListPartsInput{Bucket: c.bucket, Key: &key, UploadId: begun.UploadId})
	if err != nil {
		return err
	}
	if err := same("the number of parts", fmt.Sprint(len(listed.Parts)), "2"); err != nil {
		return err
	}
	_, err = c.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{
		Bucket: c.bucket, Key: &key, UploadId: begun.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	return err
}

func (c awsClient) multipart(ctx context.Context) error {
	key := own("multipart")
	data := []string{strings.Repeat("a", partSize), "end"}
	err := c.upload(ctx, key, func(id *string, number int32) (*string, error) {
		out, err := c.UploadPart(ctx, &awss3.UploadPartInput{Bucket: c.bucket, Key: &key, UploadId: id, PartNumber: &number, Body: strings.NewReader(data[number-1])})
		if err != nil {
			return nil, err
		}
		return out.ETag, nil
	})
	if err != nil {
		return err
	}
	return c.holds(ctx, key, data[0]+data[1])
}

func (c awsClient) copy(ctx context.Context) error {
	_, err := c.CopyObject(ctx, &awss3.CopyObjectInput{Bucket: c.bucket, Key: aws.String(own("copy")), CopySource: aws.String(*c.bucket + "/" + seeded)})
	if err != nil {
		return err
	}
	return c.holds(ctx, own("copy"), seededText)
}

func (c awsClient) partCopy(ctx context.Context) error {
	key := own("part copy")
	sources := []struct{ key, extent string }{{seededPart, fmt.Sprintf("bytes=0-%d", partSize-1)}, {seeded, "bytes=2-4"}}
	err := c.upload(ctx, key, func(id *string, number int32) (*string, error) {
		from := sources[number-1]
		out, err := c.UploadPartCopy(ctx, &awss3.UploadPartCopyInput{
			Bucket: c.bucket, Key: &key, UploadId: id, PartNumber: &number, CopySource: aws.String(*c.bucket + "/" + from.key), CopySourceRange: &from.extent,
		})
		if err != nil {
			return nil, err
		}
		return out.CopyPartResult.ETag, nil
	})
	if err != nil {
		return err
	}
	return c.holds(ctx, key, strings.Repeat("\x00", partSize)+"234")
}

func (c awsClient) putTags(ctx context.Context) error {
	_, err := c.PutObjectTagging(ctx, &awss3.PutObjectTaggingInput{
		Bucket: c.bucket, Key: aws.String(ownOrSeeded("put")), Tagging: &types.Tagging{TagSet: []types.Tag{{Key: aws.String("size"), Value: aws.String("small")}}},
	})
	return err
}

func (c awsClient) deleteTags(ctx context.Context) error {
	_, err := c.DeleteObjectTagging(ctx, &awss3.DeleteObjectTaggingInput{Bucket: c.bucket, Key: aws.String(ownOrSeeded("put"))})
	return err
}

func (c awsClient) delete(ctx context.Context) error {
	_, err := c.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: c.bucket, Key: aws.String(ownOrSeeded("put"))})
	return err
}

func (c awsClient) deleteMany(ctx context.Context) error {
	out, err := c.DeleteObjects(ctx, &awss3.DeleteObjectsInput{Bucket: c.bucket, Delete: &types.Delete{Objects: []types.ObjectIdentifier{
		{Key: aws.String(ownOrSeeded("copy"))}, {Key: aws.String(ownOrSeeded("once"))},
	}}})
	if err == nil && len(out.Errors) > 0 {
		err = &smithy.GenericAPIError{Code: *out.Errors[0].Code, Message: *out.Errors[0].Message}
	}
	return err
}

func (c awsClient) deleteVersion(ctx context.Context) error {
	key := ownOrSeeded("match")
	listed, err := c.ListObjectVersions(ctx, &awss3.ListObjectVersionsInput{Bucket: c.bucket, Prefix: &key})
	if err != nil {
		return err
	}
	if err := same("the number of versions", fmt.Sprint(len(listed.Versions)), "2"); err != nil {
		return err
	}
	_, err = c.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: c.bucket, Key: &key, VersionId: listed.Versions[1].VersionId})
	return err
}

func (c awsClient) presignedPut(ctx context.Context) error {
	req, err := awss3.NewPresignClient(c.Client).PresignPutObject(ctx, &awss3.PutObjectInput{Bucket: c.bucket, Key: aws.String(own("presigned"))})
	if err != nil {
		return err
	}
	_, err = fetch(ctx, req.Method, req.URL, "hello", req.SignedHeader)
	return err
}

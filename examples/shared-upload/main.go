// Command shared-upload guards a shared file. It takes a lease from the gateway's HTTP API, requests the lease's S3
// credentials, and uploads with an ordinary S3 SDK. An uploader whose lease has expired is refused with 412
// StaleFencingToken.
//
//	go run ./cmd/fencegate dev --ephemeral -- go run ./examples/shared-upload
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// The bucket's rule is "key": writing reports/summary.txt needs a lease of that name.
const (
	bucket   = "reports"
	key      = "summary.txt"
	resource = bucket + "/" + key
)

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	// Uploader 1 acquires the lease, and pauses.
	first, err := newUploader(ctx, "500ms")
	if err != nil {
		return err
	}
	fmt.Printf("uploader 1 has token %s of %s, and pauses\n", first.token, resource)

	// Uploader 2 waits until that lease has expired, and uploads.
	second, err := newUploader(ctx, "30s")
	if err != nil {
		return err
	}
	defer second.release(context.WithoutCancel(ctx))
	if err := second.upload(ctx, "written by uploader 2"); err != nil {
		return err
	}
	fmt.Printf("uploader 2 has token %s, and uploaded\n", second.token)

	// Uploader 1 resumes and uploads with its old credentials.
	var refused smithy.APIError
	err = first.upload(ctx, "written by uploader 1")
	if !errors.As(err, &refused) || refused.ErrorCode() != "StaleFencingToken" {
		return fmt.Errorf("uploader 1 should have been refused as stale; got: %w", err)
	}
	fmt.Printf("uploader 1 was refused: %s: %s\n", refused.ErrorCode(), refused.ErrorMessage())

	text, err := second.download(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("the object holds %q\n", text)
	return nil
}

// uploader is an S3 client under a lease.
type uploader struct {
	token, handle string
	client        *s3.Client
}

func newUploader(ctx context.Context, ttl string) (*uploader, error) {
	var lease struct{ Token, Handle string }
	if err := call(ctx, "/v1/leases", map[string]string{"resource": resource, "ttl": ttl, "wait": "10s"}, &lease); err != nil {
		return nil, err
	}
	var creds struct {
		AccessKeyID     string `json:"access_key_id"`
		SecretAccessKey string `json:"secret_access_key"`
		SessionToken    string `json:"session_token"`
		EndpointURL     string `json:"endpoint_url"`
		Region          string `json:"region"`
	}
	if err := call(ctx, "/v1/leases/credentials", map[string]string{"handle": lease.Handle}, &creds); err != nil {
		return nil, err
	}
	return &uploader{token: lease.Token, handle: lease.Handle, client: s3.New(s3.Options{
		Region: creds.Region, BaseEndpoint: aws.String(creds.EndpointURL), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(creds.AccessKeyID, creds.SecretAccessKey, creds.SessionToken),
	})}, nil
}

func (u *uploader) upload(ctx context.Context, text string) error {
	_, err := u.client.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String(key), Body: strings.NewReader(text)})
	return err
}

func (u *uploader) download(ctx context.Context) (string, error) {
	out, err := u.client.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)})
	if err != nil {
		return "", err
	}
	defer out.Body.Close()
	b, err := io.ReadAll(out.Body)
	return string(b), err
}

// release ends the lease, so that the next one need not wait for its TTL.
func (u *uploader) release(ctx context.Context) {
	if err := call(ctx, "/v1/leases/release", map[string]string{"handle": u.handle}, nil); err != nil {
		log.Print(err)
	}
}

// call posts JSON to the gateway's HTTP API and reads its JSON reply, unless that is nil.
func call(ctx context.Context, path string, body, reply any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("FENCEGATE_GATEWAY")+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		problem, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s: %s: %s", path, resp.Status, problem)
	}
	if reply == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(reply)
}

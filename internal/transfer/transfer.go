// Package transfer moves objects between files and an S3 port.
//
// The guarantee: a regular file appears with all of an object's bytes or not at all, and an object is written by one
// commit, whatever its number of parts.
//
//	c := transfer.New(transfer.Config{Endpoint: url, Region: "us-east-1", Credentials: creds})
//	err := c.Upload(ctx, "report.pdf", transfer.Object{Bucket: "orders", Key: "1001/report.pdf"}, transfer.Options{})
package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/writelimit"
)

// PartSize is the size of a large upload's parts, in bytes, unless there would be more than 10,000.
const PartSize = 64 << 20

const maxParts = 10_000

const (
	// answerTimeout is how long the S3 port may take to answer a request that it has received: a commit or a copy may
	// be slow.
	answerTimeout = 5 * time.Minute
	// silence is how long it may send nothing, or take nothing, in the middle of an object.
	silence = 2 * time.Minute
)

// Config configures the S3 port and the credentials.
type Config struct {
	Endpoint, Region string
	Credentials      aws.CredentialsProvider
}

// Client moves objects. It is safe for concurrent use.
type Client struct {
	s3       *s3.Client
	endpoint string
}

// New returns a Client, which connects on first use.
func New(c Config) *Client {
	return &Client{endpoint: c.Endpoint, s3: s3.New(s3.Options{
		Region: c.Region, BaseEndpoint: &c.Endpoint, UsePathStyle: true, Credentials: c.Credentials,
		HTTPClient:                 sentTracker{awshttp.NewBuildableClient().WithTransportOptions(impatient)},
		APIOptions:                 []func(*middleware.Stack) error{rememberAttempts},
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
	})}
}

// impatient bounds the time in which the S3 port does nothing.
func impatient(t *http.Transport) {
	t.ResponseHeaderTimeout = answerTimeout
	t.DialContext = writelimit.Within(silence, t.DialContext)
}

// Object names an object, or a version of it.
type Object struct{ Bucket, Key, Version string }

func (o Object) String() string { return "s3://" + o.Bucket + "/" + o.Key }

// ParseObject parses s3://BUCKET/KEY; the key is not decoded. ok is false if the text does not begin with s3://.
func ParseObject(text string) (o Object, ok bool, err error) {
	rest, ok := strings.CutPrefix(text, "s3://")
	if !ok {
		return o, false, nil
	}
	o.Bucket, o.Key, _ = strings.Cut(rest, "/")
	if o.Bucket == "" || o.Key == "" {
		return o, true, &fence.InvalidError{Field: "object", Reason: fmt.Sprintf("is %q; it must read s3://BUCKET/KEY", text)}
	}
	return o, true, nil
}

// Options are the options of a transfer.
type Options struct {
	Range     string // of a download: "FIRST-LAST", "FIRST-" or "-LAST BYTES", as in HTTP
	NoClobber bool   // refuse to replace an existing object
}

var rangeForm = regexp.MustCompile(`^(\d+-\d*|-\d+)$`)

// Cat writes an object's bytes, or a range of them, to w. Once ctx has ended it leaves a Write that blocks behind.
func (c *Client) Cat(ctx context.Context, from Object, w io.Writer, o Options) error {
	if o.Range != "" && !rangeForm.MatchString(o.Range) {
		// S3 ignores an invalid range, and would send the whole object.
		return &fence.InvalidError{Field: "range", Reason: fmt.Sprintf("is %q; it must read FIRST-LAST, FIRST- or -N", o.Range)}
	}
	in := &s3.GetObjectInput{Bucket: &from.Bucket, Key: &from.Key, VersionId: optional(from.Version)}
	if o.Range != "" {
		in.Range = aws.String("bytes=" + o.Range)
	} else {
		in.ChecksumMode = types.ChecksumModeEnabled
	}
	heard, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, err := c.s3.GetObject(heard, in)
	if err != nil {
		return c.explain(from.String(), err)
	}
	defer func() { _ = out.Body.Close() }()
	n, err := copyUntil(ctx, w, &bounded{out.Body, cancel})
	if err != nil && errors.Is(context.Cause(heard), errSilent) {
		err = errSilent
	}
	if err == nil && out.ContentLength != nil && n != *out.ContentLength {
		err = io.ErrUnexpectedEOF
	}
	if ctx.Err() != nil {
		return fmt.Errorf("read %s: %w", from, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("read %s after %d bytes: %w", from, n, err)
	}
	return nil
}

// copyUntil is io.Copy that returns within a second after ctx has ended, even if a Write blocks, as to a pipe that nobody
// reads. That Write is left behind.
func copyUntil(ctx context.Context, w io.Writer, r io.Reader) (int64, error) {
	type result struct {
		n   int64
		err error
	}
	copied := make(chan result, 1)
	go func() {
		n, err := io.Copy(w, r)
		copied <- result{n, err}
	}()
	select {
	case c := <-copied:
		return c.n, c.err
	case <-ctx.Done():
	}
	select {
	case c := <-copied: // the request has ended with ctx
		return c.n, c.err
	case <-time.After(time.Second):
		return 0, context.Cause(ctx)
	}
}

var errSilent = fmt.Errorf("the S3 port sent nothing for %v", silence)

// bounded is a body whose request is canceled if a read takes too long. The time that the reader takes for itself does
// not count.
type bounded struct {
	body   io.Reader
	cancel context.CancelCauseFunc
}

func (b *bounded) Read(p []byte) (int, error) {
	silent := time.AfterFunc(silence, func() { b.cancel(errSilent) })
	defer silent.Stop()
	return b.body.Read(p)
}

// Copy copies an object. Its bytes are copied inside the gateway.
func (c *Client) Copy(ctx context.Context, from, to Object, o Options) error {
	source := strings.ReplaceAll(url.PathEscape(from.Bucket+"/"+from.Key), "+", "%2B") // a plain + is read as a space
	if from.Version != "" {
		source += "?versionId=" + url.QueryEscape(from.Version)
	}
	_, err := c.s3.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &to.Bucket, Key: &to.Key, CopySource: &source, IfNoneMatch: o.ifNoneMatch()})
	return c.explainWrite(from.String()+" to "+to.String(), "copy", to, err)
}

func (o Options) ifNoneMatch() *string {
	if o.NoClobber {
		return aws.String("*")
	}
	return nil
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// explain adds the fence's reason to an error of the S3 port.
func (c *Client) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	if unsent, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		return fmt.Errorf("%s: %w", what, &UnreachableError{Endpoint: c.endpoint, Cause: unsent.Err})
	}
	api, isAPI := errors.AsType[smithy.APIError](err)
	if !isAPI {
		return fmt.Errorf("%s: %w", what, err)
	}
	for _, c := range fence.Codes {
		if c.S3Code == api.ErrorCode() && c.S3Status != http.StatusServiceUnavailable {
			// The message ends with a hint, which is removed: the caller adds its own by the error's code.
			said := strings.TrimSuffix(strings.TrimSuffix(api.ErrorMessage(), c.Hint), ". ")
			return &refused{text: fmt.Sprintf("%s: %s", what, said), err: c.Err}
		}
	}
	return fmt.Errorf("%s: %w", what, &Error{Code: api.ErrorCode(), Message: api.ErrorMessage()})
}

// refused is a refusal by the fence, with the S3 port's message.
type refused struct {
	text string
	err  error
}

func (e *refused) Error() string { return e.text }
func (e *refused) Unwrap() error { return e.err }

// UnreachableError reports that the S3 port did not answer.
type UnreachableError struct {
	Endpoint string
	Cause    error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no answer from the S3 port at %s: %v", e.Endpoint, e.Cause)
}

func (e *UnreachableError) Unwrap() error { return e.Cause }

// Error is a refusal by the S3 port for another reason than the fence.
type Error struct{ Code, Message string }

func (e *Error) Error() string { return e.Code + ": " + e.Message }

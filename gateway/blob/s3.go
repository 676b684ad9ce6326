package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// MaxS3Blob is the size of the largest blob in an [S3] store, in bytes: the limit of one PutObject. A larger object is
// uploaded in parts, and each part is a blob of its own.
const MaxS3Blob = 5 << 30

// S3Config says where an [S3] store keeps its blobs.
type S3Config struct {
	Bucket    string // required; the store never creates it
	Prefix    string // of every key; "": the whole bucket
	Endpoint  string // URL of the service; "": AWS_ENDPOINT_URL_S3, or AWS
	Region    string // "": AWS_REGION or the profile's, else us-east-1
	PathStyle bool   // http://HOST/BUCKET/KEY rather than http://BUCKET.HOST/KEY

	Credentials aws.CredentialsProvider // nil: the AWS SDK's default chain: environment, files, the machine's role
	Connections int                     // to the service for reading, and as many for writing; default 256
	Stall       time.Duration           // of a transfer without progress at the service; default 1m
	Timeout     time.Duration           // of everything else, including retries; default 30s
}

// S3 keeps each blob as an object of an S3 service, under PREFIX/xx/ID, where xx
// is the id's last byte. The bucket and prefix must belong to fencegate alone,
// without versioning or a lifecycle that removes what is there.
//
// A blob is sent once, by one PutObject of known length, which a service makes visible completely or not at all. A
// CRC-32C follows the bytes; the service refuses bytes that do not match. If the service's answer is lost, Put fails,
// though the blob may exist: its id is never used again, and Delete removes it. Requests that change nothing are tried
// three times.
type S3 struct {
	writes, reads, rest *s3.Client // with separate connections: a copy that reads and writes must not wait for itself
	transports          []*http.Transport
	bucket, prefix      string
	stall, timeout      time.Duration
	places              chan struct{} // one for each open read
}

var _ Store = (*S3)(nil)

// ErrBusy reports that all connections for reading are in use.
var ErrBusy = errors.New("all connections to the S3 service are in use for reading; try again, or allow more connections")

// ErrTooLarge reports that the store accepts no blob of that size. Nothing of it was read.
var ErrTooLarge = errors.New("blob is too large for the store")

// OpenS3 creates the store. It does not connect yet; [Probe] does.
func OpenS3(ctx context.Context, c S3Config) (*S3, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Connections == 0 {
		c.Connections = 256
	}
	if c.Stall == 0 {
		c.Stall = time.Minute
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	options := []func(*config.LoadOptions) error{config.WithDefaultRegion("us-east-1")}
	if c.Region != "" {
		options = append(options, config.WithRegion(c.Region))
	}
	if c.Credentials != nil {
		options = append(options, config.WithCredentialsProvider(c.Credentials))
	}
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("blob address: what the AWS SDK needs can't be loaded: %w", err)
	}
	s := &S3{bucket: c.Bucket, prefix: c.Prefix, stall: c.Stall, timeout: c.Timeout, places: make(chan struct{}, c.Connections)}
	if s.prefix = strings.Trim(s.prefix, "/"); s.prefix != "" {
		s.prefix += "/"
	}
	for client, tries := range map[**s3.Client]int{&s.writes: 1, &s.reads: 3, &s.rest: 3} {
		transport := c.transport()
		s.transports = append(s.transports, transport)
		*client = s3.NewFromConfig(loaded, c.client(transport, tries))
	}
	return s, nil
}

// Close closes idle connections. Transfers in progress continue.
func (s *S3) Close() error {
	for _, t := range s.transports {
		t.CloseIdleConnections()
	}
	return nil
}

func (c S3Config) transport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		MaxConnsPerHost:       c.Connections,
		MaxIdleConns:          c.Connections,
		MaxIdleConnsPerHost:   min(c.Connections, 64),
		IdleConnTimeout:       time.Minute,
		ExpectContinueTimeout: time.Second,
	}
}

// client returns the options of one of the store's clients.
func (c S3Config) client(transport *http.Transport, tries int) func(*s3.Options) {
	return func(o *s3.Options) {
		endpoint, plain := c.Endpoint, false
		if endpoint == "" && o.BaseEndpoint != nil {
			endpoint = *o.BaseEndpoint // from AWS_ENDPOINT_URL_S3 or the profile
		}
		if rest, ok := strings.CutPrefix(endpoint, "http://"); ok {
			endpoint, plain = "https://"+rest, true
		}
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
		o.UsePathStyle = c.PathStyle
		o.HTTPClient = &sender{client: &http.Client{Transport: transport, CheckRedirect: noRedirect}, plain: plain}
		o.Retryer = retry.NewStandard(func(r *retry.StandardOptions) { r.MaxAttempts = tries })
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired // a range has no checksum
	}
}

// noRedirect refuses redirects: a body that was sent cannot be sent again.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// sender sends requests. For a body that cannot be read twice, the SDK appends a checksum only over TLS; without TLS it
// is needed even more. So the SDK sees an https address, and plain says whether it is really http.
type sender struct {
	client *http.Client
	plain  bool
}

// Do implements the SDK's HTTPClient.
func (s *sender) Do(r *http.Request) (*http.Response, error) {
	if s.plain {
		u := *r.URL
		u.Scheme = "http"
		r.URL = &u
	}
	return s.client.Do(r)
}

func (s *S3) key(id ID) *string {
	text := id.String()
	key := s.prefix + text[len(text)-2:] + "/" + text
	return &key
}

// Put implements [Store]. It reads exactly size bytes.
func (s *S3) Put(ctx context.Context, id ID, r io.Reader, size int64) error {
	if err := s.put(ctx, s.key(id), r, size); err != nil {
		return fmt.Errorf("store blob %s: %w", id, err)
	}
	return nil
}

func (s *S3) put(ctx context.Context, key *string, r io.Reader, size int64) error {
	if size > MaxS3Blob {
		return fmt.Errorf("%w: %d bytes; S3 takes %d at once: upload it in parts", ErrTooLarge, size, int64(MaxS3Blob))
	}
	sending, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	src := &source{ctx: sending, r: r, left: size, watch: newWatch(s.stall, cancel)}
	in := &s3.PutObjectInput{Bucket: &s.bucket, Key: key, ContentLength: &size, ChecksumAlgorithm: types.ChecksumAlgorithmCrc32c}
	if size > 0 { // for size 0 the SDK wants none
		in.Body = src
	}
	_, err := s.writes.PutObject(sending, in)
	left, own := src.shut()
	switch {
	case own != nil:
		return own
	case ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	case err != nil && sending.Err() != nil:
		return context.Cause(sending)
	case err == nil && left > 0:
		return fmt.Errorf("the S3 service answered before it had the last %d bytes", left)
	}
	return err
}

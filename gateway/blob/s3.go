package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
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

// Open implements [Store].
func (s *S3) Open(ctx context.Context, id ID, offset, length int64) (io.ReadCloser, error) {
	if offset < 0 || length < 0 {
		return nil, fmt.Errorf("open blob %s: %w: bytes %d+%d", id, ErrSize, offset, length)
	}
	if length == 0 { // no range expresses that
		size, err := s.Size(ctx, id)
		if err == nil && offset > size {
			err = fmt.Errorf("open blob %s: %w: bytes %d+0 of %d", id, ErrSize, offset, size)
		}
		if err != nil {
			return nil, err
		}
		return http.NoBody, nil
	}
	if err := s.enter(ctx); err != nil {
		return nil, fmt.Errorf("open blob %s: %w", id, err)
	}
	return s.openWith(ctx, id, offset, length, sync.OnceFunc(s.leave))
}

// Follow is [S3.Open] for a reader that goes on with another blob: it closes r, and the new reader has r's place. A
// reader that had to wait for a new one could be refused in the middle of what it reads.
func (s *S3) Follow(ctx context.Context, r io.ReadCloser, id ID, offset, length int64) (io.ReadCloser, error) {
	d, ours := r.(*download)
	if !ours || offset < 0 || length <= 0 {
		if err := r.Close(); err != nil {
			return nil, err
		}
		return s.Open(ctx, id, offset, length)
	}
	leave := d.leave
	d.leave = func() {}
	if err := d.Close(); err != nil {
		leave()
		return nil, err
	}
	return s.openWith(ctx, id, offset, length, leave)
}

// openWith opens a reader that has a place, which leave gives up.
func (s *S3) openWith(ctx context.Context, id ID, offset, length int64, leave func()) (io.ReadCloser, error) {
	d, err := s.open(ctx, s.key(id), offset, length)
	if err == nil {
		d.leave = leave
		return d, nil
	}
	leave()
	if status(err) == http.StatusRequestedRangeNotSatisfiable {
		return nil, fmt.Errorf("open blob %s: %w: bytes %d+%d", id, ErrSize, offset, length)
	}
	return nil, absent(id, err)
}

// maxWait is how long a read waits for its place: slow readers keep theirs for long.
const maxWait = 5 * time.Second

// enter waits for a place among the open reads, so that a request's connection is free when its stall timeout begins.
func (s *S3) enter(ctx context.Context) error {
	timer := time.NewTimer(min(maxWait, s.stall))
	defer timer.Stop()
	select {
	case s.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return ErrBusy
	}
}

func (s *S3) leave() { <-s.places }

// open requests a range. The context bounds only the opening.
func (s *S3) open(ctx context.Context, key *string, offset, length int64) (*download, error) {
	reading, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	watch := newWatch(s.stall, cancel)
	wanted := fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)
	out, err := s.reads.GetObject(reading, &s3.GetObjectInput{Bucket: &s.bucket, Key: key, Range: &wanted})
	watch.rest()
	if !stop() && err == nil {
		_ = out.Body.Close()
		err = ctx.Err()
	}
	if err != nil {
		if reading.Err() != nil {
			err = errors.Join(context.Cause(reading), err)
		}
		cancel(errOver)
		return nil, err
	}
	d := &download{body: out.Body, left: length, ctx: reading, cancel: cancel, watch: watch, leave: func() {}}
	begin := fmt.Sprintf("bytes %d-", offset)
	switch {
	case out.ContentLength == nil || *out.ContentLength != length:
		err = fmt.Errorf("%w: bytes %d+%d", ErrSize, offset, length)
	case out.ContentRange != nil && !strings.HasPrefix(*out.ContentRange, begin), out.ContentRange == nil && offset > 0:
		err = errors.New("the S3 service returned another range than was requested")
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Size implements [Store].
func (s *S3) Size(ctx context.Context, id ID) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	out, err := s.rest.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: s.key(id)})
	switch {
	case err != nil:
		return 0, absent(id, err)
	case out.ContentLength == nil:
		return 0, fmt.Errorf("blob %s: the S3 service does not say its size", id)
	}
	return *out.ContentLength, nil
}

// Delete implements [Store].
func (s *S3) Delete(ctx context.Context, id ID) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := s.rest.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: s.key(id)})
	if err != nil && !errors.Is(absent(id, err), ErrNotFound) {
		return fmt.Errorf("delete blob %s: %w", id, err)
	}
	return nil
}

// All implements [Store], in pages of at most 1,000. It skips objects that are not blobs.
func (s *S3) All(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		var token *string
		for {
			page, err := s.page(ctx, token)
			if err != nil {
				yield(Info{}, fmt.Errorf("list blobs: %w", err))
				return
			}
			for _, o := range page.Contents {
				info, ours := s.infoOf(o)
				if ours && !yield(info, nil) {
					return
				}
			}
			more := page.IsTruncated != nil && *page.IsTruncated
			switch {
			case !more:
				return
			case page.NextContinuationToken == nil || token != nil && *token == *page.NextContinuationToken:
				yield(Info{}, errors.New("list blobs: the S3 service reports more blobs, but no continuation token"))
				return
			}
			token = page.NextContinuationToken
		}
	}
}

func (s *S3) page(ctx context.Context, token *string) (*s3.ListObjectsV2Output, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.rest.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: &s.prefix, ContinuationToken: token})
}

func (s *S3) infoOf(o types.Object) (Info, bool) {
	if o.Key == nil || o.Size == nil || o.LastModified == nil {
		return Info{}, false
	}
	id, err := ParseID((*o.Key)[strings.LastIndexByte(*o.Key, '/')+1:])
	return Info{ID: id, Size: *o.Size, Changed: *o.LastModified}, err == nil && *s.key(id) == *o.Key
}

// Owner implements [Store].
func (s *S3) Owner(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	key := s.prefix + ownerName
	out, err := s.rest.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: &key})
	if err != nil {
		if errors.Is(absent(ID{}, err), ErrNotFound) {
			return "", nil
		}
		return "", fmt.Errorf("read the owner mark of the blob store: %w", err)
	}
	mark, err := io.ReadAll(io.LimitReader(out.Body, maxOwner))
	if err = errors.Join(err, out.Body.Close()); err != nil {
		return "", fmt.Errorf("read the owner mark of the blob store: %w", err)
	}
	return string(mark), nil
}

// SetOwner implements [Store].
func (s *S3) SetOwner(ctx context.Context, mark string) error {
	key := s.prefix + ownerName
	if err := s.put(ctx, &key, bytes.NewReader([]byte(mark)), int64(len(mark))); err != nil {
		return fmt.Errorf("write the owner mark of the blob store: %w", err)
	}
	return nil
}

// absent distinguishes a missing object from a missing bucket, which must not count as missing blobs.
func absent(id ID, err error) error {
	api, isAPI := errors.AsType[smithy.APIError](err)
	if isAPI && status(err) == http.StatusNotFound && (api.ErrorCode() == "NoSuchKey" || api.ErrorCode() == "NotFound") {
		return fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return fmt.Errorf("blob %s: %w", id, err)
}

// status returns the HTTP status of a service's error; 0: there was none.
func status(err error) int {
	if answer, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok {
		return answer.HTTPStatusCode()
	}
	return 0
}

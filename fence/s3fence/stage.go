package s3fence

import (
	"context"
	"crypto/md5" //nolint:gosec // S3 defines the ETag as the MD5 of the bytes
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"

	"github.com/fencegate/fencegate/fence"
)

// Config configures a [Client].
type Config struct {
	Endpoint string // of the gateway's S3 port: http://host:port
	Region   string // default us-east-1

	// The credentials of a lease, or the root credentials together with a Grant.
	AccessKeyID, SecretAccessKey, SessionToken string
	// Credentials are retrieved before each upload and replace these three. Default: nil.
	Credentials aws.CredentialsProvider

	// Grant is sent in the header Fencing-Token. It is needed with the root credentials. Default: none.
	Grant fence.Grant

	HTTPClient *http.Client // default: one that waits 5 minutes for the answer to an upload
}

// FromEnv reads the variables that fencegate run sets: AWS_ENDPOINT_URL_S3, AWS_REGION, and
// AWS_CONTAINER_CREDENTIALS_FULL_URI with AWS_CONTAINER_AUTHORIZATION_TOKEN, or else AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN. Pass os.LookupEnv.
func FromEnv(lookup func(string) (string, bool)) Config {
	value := func(name string) string { v, _ := lookup(name); return v }
	cfg := Config{
		Endpoint: value("AWS_ENDPOINT_URL_S3"), Region: value("AWS_REGION"), AccessKeyID: value("AWS_ACCESS_KEY_ID"),
		SecretAccessKey: value("AWS_SECRET_ACCESS_KEY"), SessionToken: value("AWS_SESSION_TOKEN"),
	}
	if uri := value("AWS_CONTAINER_CREDENTIALS_FULL_URI"); uri != "" && cfg.AccessKeyID == "" {
		cfg.Credentials = aws.NewCredentialsCache(endpointcreds.New(uri, func(o *endpointcreds.Options) {
			o.AuthorizationToken = value("AWS_CONTAINER_AUTHORIZATION_TOKEN")
		}))
	}
	return cfg
}

// provider returns the provider of the credentials.
func (c Config) provider() aws.CredentialsProvider {
	if c.Credentials != nil {
		return c.Credentials
	}
	return credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, c.SessionToken)
}

// Client stages uploads. Safe for concurrent use.
type Client struct {
	cfg    Config
	base   *url.URL
	signer *v4.Signer
}

// New creates a client. It does not connect. The error is a [*fence.InvalidError].
func New(cfg Config) (*Client, error) {
	base, err := url.Parse(cfg.Endpoint)
	switch {
	case err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https":
		return nil, &fence.InvalidError{Field: "endpoint", Reason: "is not the URL of an S3 port, such as http://127.0.0.1:8000"}
	case cfg.Credentials == nil && (cfg.AccessKeyID == "" || cfg.SecretAccessKey == ""):
		return nil, &fence.InvalidError{Field: "credentials", Reason: "are missing"}
	}
	if cfg.Region == "" {
		cfg.Region = "us-east-1"
	}
	if cfg.HTTPClient == nil {
		cfg.HTTPClient = patient()
	}
	// S3 signs the path exactly as it is sent.
	return &Client{cfg: cfg, base: base, signer: v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })}, nil
}

// patient returns the default HTTP client, whose connections all clients share. Without a limit, an S3 port that
// accepts an upload and never answers, or stops reading, would hold its caller, and the caller's lease, without end.
var patient = sync.OnceValue(func() *http.Client {
	base, ok := http.DefaultTransport.(*http.Transport)
	if !ok { // the program has replaced it
		return http.DefaultClient
	}
	transport := base.Clone()
	transport.ResponseHeaderTimeout = 5 * time.Minute
	if transport.DialContext != nil { // the program's own transport may dial otherwise
		transport.DialContext = writesWithin(2*time.Minute, transport.DialContext)
	}
	return &http.Client{Transport: transport}
})

// Staged is an upload that waits to be published.
type Staged struct {
	ID          string // not secret, but unguessable
	Bucket, Key string
	ETag        string // without quotes
	Size        int64  // bytes
}

// String names the upload for messages.
func (s Staged) String() string { return fmt.Sprintf("%s/%s (stage %s)", s.Bucket, s.Key, s.ID) }

// Option is a choice for [Client.Stage].
type Option func(http.Header)

// ContentType sets the object's Content-Type.
func ContentType(t string) Option { return func(h http.Header) { h.Set("Content-Type", t) } }

// Metadata adds the metadata x-amz-meta-NAME to the object.
func Metadata(name, value string) Option {
	return func(h http.Header) { h.Set("X-Amz-Meta-"+name, value) }
}

// IfMatch makes publishing fail with [ErrPrecondition] unless the key has this ETag at that time; "*" matches any.
func IfMatch(etag string) Option {
	return func(h http.Header) {
		if etag != "*" {
			etag = `"` + strings.Trim(etag, `"`) + `"`
		}
		h.Set("If-Match", etag)
	}
}

// IfNoneMatch makes publishing fail with [ErrPrecondition] if the key exists at that time.
func IfNoneMatch() Option { return func(h http.Header) { h.Set("If-None-Match", "*") } }

const (
	headerStage     = "Fencing-Stage"
	unsignedPayload = "UNSIGNED-PAYLOAD"
	maxErrorBody    = 64 << 10 // bytes
)

// Stage uploads size bytes and records them under the grant, invisible to readers. It streams, and compares the
// stored bytes with those read. After an error the stage, if any, is unreachable: call Stage again with a new reader.
// A refusal is a [*StageError] that errors.Is matches with fence.ErrStale and the like. If the answer is lost, errors.Is
// matches fence.ErrUnknown: the upload may be staged, and only the sweep will find it.
func (c *Client) Stage(ctx context.Context, bucket, key string, body io.Reader, size int64, opts ...Option) (Staged, error) {
	s := Staged{Bucket: bucket, Key: key, Size: size}
	switch {
	case bucket == "" || key == "":
		return s, &fence.InvalidError{Field: "bucket or key", Reason: "is empty"}
	case size < 0:
		return s, &fence.InvalidError{Field: "size", Reason: "is negative"}
	}
	sum := &digest{hash: md5.New()} //nolint:gosec // see the import
	req, err := c.request(ctx, bucket, key, io.TeeReader(io.LimitReader(body, size), sum), size, opts)
	if err != nil {
		return s, fmt.Errorf("stage %s/%s: %w", bucket, key, err)
	}
	res, sent, err := c.send(req)
	switch {
	case err != nil && sent:
		return s, fmt.Errorf("stage %s/%s: %w: %w", bucket, key, fence.ErrUnknown, err)
	case err != nil:
		return s, fmt.Errorf("stage %s/%s: %w", bucket, key, err)
	}
	defer func() { _ = res.Body.Close() }()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusBadGateway, http.StatusGatewayTimeout: // of a balancer, which received no answer
		return s, fmt.Errorf("stage %s/%s: %w: %w", bucket, key, fence.ErrUnknown, refusal(res))
	default:
		return s, fmt.Errorf("stage %s/%s: %w", bucket, key, refusal(res))
	}
	s.ID, s.ETag = res.Header.Get(headerStage), strings.Trim(res.Header.Get("ETag"), `"`)
	switch {
	case s.ID == "":
		return s, fmt.Errorf("stage %s/%s: %w", bucket, key, errNoStage)
	case s.ETag != sum.text():
		return s, fmt.Errorf("stage %s/%s: the stored bytes differ from those sent; stage it again", bucket, key)
	}
	return s, nil
}

// send sends a request. sent reports whether all of it was written.
func (c *Client) send(req *http.Request) (res *http.Response, sent bool, err error) {
	var whole atomic.Bool // written by the transport
	trace := &httptrace.ClientTrace{WroteRequest: func(wrote httptrace.WroteRequestInfo) {
		if wrote.Err == nil {
			whole.Store(true)
		}
	}}
	res, err = c.cfg.HTTPClient.Do(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	return res, whole.Load(), err
}

// digest is written by the transport, which may still hold the body when the response has arrived.
type digest struct {
	mu   sync.Mutex
	hash hash.Hash
}

func (d *digest) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hash.Write(p)
}

func (d *digest) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return hex.EncodeToString(d.hash.Sum(nil))
}

var errNoStage = errors.New("the server does not support Fencing-Stage: it stored the object at once instead of staging it")

func (c *Client) request(ctx context.Context, bucket, key string, body io.Reader, size int64, opts []Option) (*http.Request, error) {
	target := *c.base
	target.Path = strings.TrimSuffix(target.Path, "/") + "/" + bucket + "/" + key
	target.RawPath = escaped(target.Path)
	if size == 0 {
		body = http.NoBody
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, target.String(), body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	for _, opt := range opts {
		opt(req.Header)
	}
	req.Header.Set(headerStage, "true")
	req.Header.Set("X-Amz-Content-Sha256", unsignedPayload) // the ETag in the response is compared instead
	if c.cfg.Grant.Resource != "" {
		req.Header.Set(fence.HeaderToken, c.cfg.Grant.Presented())
	}
	creds, err := c.cfg.provider().Retrieve(ctx)
	if err != nil {
		return nil, fmt.Errorf("credentials of the lease: %w", err)
	}
	return req, c.signer.SignHTTP(ctx, creds, req, unsignedPayload, "s3", c.cfg.Region, time.Now())
}

// escaped encodes a path as S3's signature requires: everything except unreserved characters and the slash.
func escaped(path string) string {
	var b strings.Builder
	for i := range len(path) {
		c := path[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~/", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func refusal(res *http.Response) error {
	var e struct{ Code, Message string }
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	if xml.Unmarshal(text, &e) != nil || e.Code == "" {
		e.Code, e.Message = "Unreadable", "the answer is no S3 error"
	}
	return &StageError{Status: res.StatusCode, Code: e.Code, Message: e.Message}
}

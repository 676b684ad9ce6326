package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/wire"
)

func init() { //nolint:gochecknoinits // a table of surfaces whose parts are in several files
	makers["s3-small"] = newS3(putSmall)
	makers["s3-large"] = newS3(putLarge)
	makers["s3-multipart"] = newS3(putMultipart)
	makers["s3-slow"] = newS3(putSlow)
}

// s3Surface is a lease by HTTP with its S3 credentials: aws-sdk-go-v2 with its default settings, except for the
// endpoint, the region and path style. put writes an object.
type s3Surface struct {
	env       *env
	transport *http.Transport
	http      *http.Client
	put       func(ctx context.Context, h *s3Holding, w write) error
}

func newS3(put func(context.Context, *s3Holding, write) error) func(*env) (surface, error) {
	return func(e *env) (surface, error) { return newS3Surface(e, put), nil }
}

func newS3Surface(e *env, put func(context.Context, *s3Holding, write) error) *s3Surface {
	transport := awshttp.NewBuildableClient().GetTransport() // the SDK's default transport
	e.idle = append(e.idle, transport.CloseIdleConnections)
	return &s3Surface{env: e, transport: transport, http: &http.Client{Transport: paced{transport}}, put: put}
}

func (s *s3Surface) registers(resource string) []string { return []string{fileRegister(resource)} }

func (s *s3Surface) acquire(ctx context.Context, a ask) (holding, error) { return s.hold(ctx, a) }

func (s *s3Surface) hold(ctx context.Context, a ask) (*s3Holding, error) {
	lease, err := s.env.lease(ctx, a)
	if err != nil {
		return nil, err
	}
	h := &s3Holding{httpLease: lease, s: s, key: objectKey(a.resource), at: s.env.gateway(), wholly: a.whole}
	asking, cancel := context.WithTimeout(ctx, time.Until(lease.deadline()))
	defer cancel()
	_ = h.prepare(asking) // after an error, the next read or write tries again
	return h, nil
}

func (s *s3Surface) close() { s.transport.CloseIdleConnections() }

// fileRegister is the register of the object of a resource BUCKET/NAME: BUCKET/NAME/data.
func fileRegister(resource string) string { return "file:" + resource + "/data" }

// objectKey is the key of the resource's object in the bucket.
func objectKey(resource string) string {
	_, name, _ := strings.Cut(resource, "/")
	return name + "/data"
}

// s3Holding is a lease with S3 credentials.
type s3Holding struct {
	*httpLease

	s       *s3Surface
	key     string
	creds   wire.Credentials
	clients []*s3.Client // one for each gateway, after prepare
	at      int          // the gateway in use; an error switches to the next
	wholly  bool         // objects are read whole
}

// prepare requests the lease's credentials from any gateway, once.
func (h *s3Holding) prepare(ctx context.Context) error {
	if h.clients != nil {
		return nil
	}
	creds, err := h.s.env.apis[h.s.env.gateway()].Credentials(ctx, wire.CredentialsRequest{Handle: h.lease.Handle})
	if err != nil {
		return h.failed(apiFailure(err))
	}
	h.creds = creds
	for _, g := range h.s.env.cfg.Gateways {
		h.clients = append(h.clients, s3.NewFromConfig(aws.Config{
			Region:       creds.Region,
			BaseEndpoint: aws.String(g.S3),
			Credentials:  credentials.NewStaticCredentialsProvider(creds.AccessKeyID, creds.SecretAccessKey, creds.SessionToken),
			HTTPClient:   h.s.http,
			APIOptions:   []func(*middleware.Stack) error{noteAttempts},
			// The SDK's own loading of a configuration sets this.
			RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
			ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
		}, func(o *s3.Options) { o.UsePathStyle = true }))
	}
	return nil
}

// failed is for a call that writes nothing, such as requesting credentials or staging.
func (h *s3Holding) failed(err error) error {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		f = &failure{outcome: history.Failed, err: err}
	}
	if f.outcome != history.Refused {
		f.outcome = history.Failed
	}
	return h.scrub(f)
}

func (h *s3Holding) scrub(f *failure) error {
	return scrubbed(f, h.creds.SessionToken, h.creds.SecretAccessKey, h.lease.Presented, h.lease.Handle,
		h.grant.Seal.Reveal())
}

// call makes one call of the SDK, with its attempts, and classifies its error.
func (h *s3Holding) call(ctx context.Context, call func(context.Context, *s3.Client) error) error {
	if err := h.prepare(ctx); err != nil {
		return err
	}
	made := new(attempts)
	err := call(context.WithValue(ctx, attemptsKey{}, made), h.clients[h.at])
	if err == nil {
		return nil
	}
	h.at = (h.at + 1) % len(h.clients)
	return h.scrub(made.failure(err))
}

func (h *s3Holding) write(ctx context.Context, w write) error { return h.s.put(ctx, h, w) }

func (h *s3Holding) read(ctx context.Context, register string) (saw, wrong string, err error) {
	if register != fileRegister(h.grant.Resource) {
		return "", "", fmt.Errorf("a lease of %s has no register %s", fence.EscapeResource(h.grant.Resource), register)
	}
	return h.readObject(ctx)
}

// object returns the holding itself, also from types that embed it.
func (h *s3Holding) object() *s3Holding { return h }

var _ holding = (*s3Holding)(nil)

package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	"golang.org/x/sync/errgroup"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/wire"
)

// objects reads and writes with the S3 credentials of a lease: aws-sdk-go-v2 with its default settings, except for the
// endpoint, the region and path style.
type objects struct {
	*term

	env     *env
	send    func(ctx context.Context, h *objects, w write) error
	whole   bool // objects are read whole
	creds   wire.Credentials
	clients []*s3.Client // one for each gateway, after prepare
	at      int          // the gateway in use; an error switches to the next
}

// sending makes a surface that writes objects in one way.
func sending(send func(context.Context, *objects, write) error) func(*env) (acquire, error) {
	return over((*env).lease, func(e *env, a ask, t *term) access { return newObjects(e, a, t, send) })
}

func newObjects(e *env, a ask, t *term, send func(context.Context, *objects, write) error) *objects {
	return &objects{term: t, env: e, send: send, whole: a.whole, at: e.dice.below(len(e.cfg.Gateways))}
}

func (h *objects) forget() {}

func (h *objects) write(ctx context.Context, w write) error { return h.send(ctx, h, w) }

// place is the register's bucket and key.
func place(register string) (bucket, key *string) {
	before, after, _ := strings.Cut(strings.TrimPrefix(register, fileKind), "/")
	return &before, &after
}

// prepare asks any gateway for the lease's credentials, once.
func (h *objects) prepare(ctx context.Context) (err error) {
	if h.clients != nil {
		return nil
	}
	if h.creds, err = h.env.api().Credentials(ctx, wire.CredentialsRequest{Handle: h.handles[0]}); err != nil {
		return unwritten(apiFailure(err))
	}
	for _, g := range h.env.cfg.Gateways {
		h.clients = append(h.clients, s3.NewFromConfig(aws.Config{
			Region:       h.creds.Region,
			BaseEndpoint: aws.String(g.S3),
			Credentials:  credentials.NewStaticCredentialsProvider(h.creds.AccessKeyID, h.creds.SecretAccessKey, h.creds.SessionToken),
			HTTPClient:   h.env.s3,
			APIOptions:   []func(*middleware.Stack) error{noteAttempts},
			// The SDK's own loading of a configuration sets this.
			RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
			ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
		}, func(o *s3.Options) { o.UsePathStyle = true }))
	}
	return nil
}

// call makes one call of the SDK, with its attempts, and classifies its error.
func (h *objects) call(ctx context.Context, call func(context.Context, *s3.Client) error) error {
	if err := h.prepare(ctx); err != nil {
		return err
	}
	made := new(attempts)
	err := call(context.WithValue(ctx, attemptsKey{}, made), h.clients[h.at])
	if err == nil {
		return nil
	}
	h.at = (h.at + 1) % len(h.clients)
	return made.failure(s3Failure(err))
}

// unwritten is for a call that writes nothing, such as asking for credentials or staging.
func unwritten(err error) error {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		f = failed(history.Failed, "", err)
	}
	if f.outcome != history.Refused {
		f.outcome = history.Failed
	}
	return f
}

// The ways to write an object.

const reserved = 64 << 10 // bytes: the port buffers an upload up to this size

// small writes an object that the port buffers whole, sometimes of exactly the largest such size, or one byte more.
func small(ctx context.Context, h *objects, w write) error {
	size := 100 + h.env.dice.below(reserved-99)
	if h.env.dice.chance(6) {
		size = reserved + h.env.dice.below(2)
	}
	return h.put(ctx, w, size, 0)
}

// large writes an object that is streamed.
func large(ctx context.Context, h *objects, w write) error {
	size := mebibyte + h.env.dice.below(mebibyte)
	if h.env.dice.chance(10) {
		size += h.env.dice.below(6 * mebibyte)
	}
	return h.put(ctx, w, size, h.env.dice.below(3)/2)
}

// slow pauses while it sends the body: as the SDK does it, with chunks and a trailer as over TLS, or unsigned as curl.
func slow(ctx context.Context, h *objects, w write) error {
	size := 4<<10 + h.env.dice.below(3*mebibyte)
	if h.env.dice.chance(3) {
		size = 100 + h.env.dice.below(reserved)
	}
	var forms []func(*s3.Options)
	switch h.env.dice.below(4) {
	case 0:
		forms = append(forms, chunked)
	case 1:
		forms = append(forms, unsigned)
	}
	return h.put(ctx, w, size, 1+h.env.dice.below(3), forms...)
}

// chunked makes the SDK take the transport for TLS.
func chunked(o *s3.Options) {
	o.BaseEndpoint = aws.String(strings.Replace(*o.BaseEndpoint, "http:", "https:", 1))
}

// unsigned sends one attempt, without a checksum or an identity of the call.
func unsigned(o *s3.Options) {
	o.Retryer, o.RequestChecksumCalculation = aws.NopRetryer{}, aws.RequestChecksumCalculationWhenRequired
	o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware, func(stack *middleware.Stack) error {
		_, err := stack.Build.Remove((&awsmiddleware.ClientRequestID{}).ID())
		return err
	})
}

// put writes the object, and pauses before that or as often within the body.
func (h *objects) put(ctx context.Context, w write, size, pauses int, how ...func(*s3.Options)) error {
	if pauses == 0 {
		w.pause(ctx)
	}
	bucket, key := place(w.set[0].register)
	ctx, p := withPace(ctx, size, w.pause, pauses)
	defer p.end()
	return h.call(ctx, func(ctx context.Context, c *s3.Client) error {
		_, err := c.PutObject(ctx, &s3.PutObjectInput{
			Bucket: bucket, Key: key, Metadata: opOf(w.set[0]), Body: bytes.NewReader(bodyOf(w.set[0].value, size)),
		}, how...)
		return err
	})
}

func opOf(s setting) map[string]string { return map[string]string{"op": s.value} }

const leastPart = 5 * mebibyte // the port's minimum, except for the last part

// multipart writes an object of two or three parts. Nothing is visible before the completion, so an earlier failure is
// Failed. Sometimes the upload is aborted there.
func multipart(ctx context.Context, h *objects, w write) error {
	dice := h.env.dice
	m := upload{objects: h, parts: make([]types.CompletedPart, 2+dice.below(4)/3)}
	m.bucket, m.key = place(w.set[0].register)
	m.body = bodyOf(w.set[0].value, (len(m.parts)-1)*leastPart+1+dice.below(mebibyte))
	err := h.call(ctx, func(ctx context.Context, c *s3.Client) error {
		out, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: m.bucket, Key: m.key, Metadata: opOf(w.set[0])})
		if err == nil {
			m.id = out.UploadId
		}
		return err
	})
	if err == nil {
		w.pause(ctx)
		err = m.upload(ctx, w)
	}
	if err == nil && dice.chance(12) {
		err = failed(history.Failed, "aborted", errors.New("the upload was given up"))
	}
	if err != nil {
		if m.id != nil && dice.chance(2) { // otherwise the sweep removes it
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_ = h.call(ctx, func(ctx context.Context, c *s3.Client) error {
				_, err := c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: m.bucket, Key: m.key, UploadId: m.id})
				return err
			})
		}
		return unwritten(err)
	}
	w.pause(ctx)
	return m.complete(ctx)
}

// upload is one upload in parts.
type upload struct {
	*objects

	bucket, key, id *string
	body            []byte
	parts           []types.CompletedPart
}

// upload sends the parts, one after the other with pauses between them, or concurrently.
func (m *upload) upload(ctx context.Context, w write) error {
	part := func(ctx context.Context, c *s3.Client, i int) error {
		number, from := int32(i+1), i*leastPart
		out, err := c.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: m.bucket, Key: m.key, UploadId: m.id, PartNumber: &number,
			Body: bytes.NewReader(m.body[from:min(from+leastPart, len(m.body))]),
		})
		if err == nil {
			m.parts[i] = types.CompletedPart{ETag: out.ETag, PartNumber: &number}
		}
		return err
	}
	if m.env.dice.chance(2) {
		return m.call(ctx, func(ctx context.Context, c *s3.Client) error {
			var all errgroup.Group
			for i := range m.parts {
				all.Go(func() error { return part(ctx, c, i) })
			}
			return all.Wait()
		})
	}
	for i := range m.parts {
		if err := m.call(ctx, func(ctx context.Context, c *s3.Client) error { return part(ctx, c, i) }); err != nil {
			return err
		}
		w.pause(ctx)
	}
	return nil
}

// complete completes the upload. It repeats the call if it was not answered, and sometimes otherwise: a repetition
// returns the first answer. If the fence refuses a repetition, the upload was not completed before, and can't be any
// more.
func (m *upload) complete(ctx context.Context) error {
	complete := func() error {
		return m.call(ctx, func(ctx context.Context, c *s3.Client) error {
			_, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
				Bucket: m.bucket, Key: m.key, UploadId: m.id, MultipartUpload: &types.CompletedMultipartUpload{Parts: m.parts},
			})
			return err
		})
	}
	first := complete()
	f, _ := errors.AsType[*failure](first)
	if first != nil && f.outcome != history.Unknown || ctx.Err() != nil || m.env.dice.chance(2) {
		return first
	}
	again := complete()
	if first == nil || again == nil {
		return nil
	}
	if f, _ := errors.AsType[*failure](again); f != nil && fenced(f.code) {
		return again
	}
	return first
}

// read reads the object in one of the ways of programs: whole, in part, its metadata alone, or whole and listed.
func (h *objects) read(ctx context.Context, register string) (saw, wrong string, err error) {
	bucket, key := place(register)
	err = h.call(ctx, func(ctx context.Context, c *s3.Client) error {
		way := h.env.dice.below(8)
		switch {
		case way == 0 && !h.whole:
			out, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: bucket, Key: key})
			if err != nil {
				return err
			}
			if saw = out.Metadata["op"]; saw == "" {
				wrong = "an object without the metadata op"
			}
			return nil
		case way <= 2 && !h.whole:
			saw, wrong, err = h.part(ctx, c, bucket, key)
			if e, ok := errors.AsType[smithy.APIError](err); !ok || e.ErrorCode() != "InvalidRange" {
				return err
			}
		}
		var as *s3.GetObjectOutput
		if saw, wrong, as, err = get(ctx, c, &s3.GetObjectInput{Bucket: bucket, Key: key}); err == nil && wrong == "" && way == 3 && !h.whole {
			wrong, err = listed(ctx, c, bucket, key, as)
		}
		return err
	})
	if f, ok := errors.AsType[*failure](err); ok && (f.code == "NoSuchKey" || f.code == "NotFound") { // HEAD's answer has no code
		return "", "", nil
	}
	return saw, wrong, err
}

func get(ctx context.Context, c *s3.Client, in *s3.GetObjectInput) (saw, wrong string, out *s3.GetObjectOutput, err error) {
	if out, err = c.GetObject(ctx, in); err != nil {
		return "", "", nil, err
	}
	defer func() { _ = out.Body.Close() }()
	saw, wrong, err = check(out.Body, out.Metadata["op"])
	return saw, wrong, out, err
}

// part reads a range: from an offset on, or the last bytes.
func (h *objects) part(ctx context.Context, c *s3.Client, bucket, key *string) (saw, wrong string, err error) {
	from, length := h.env.dice.below(100<<10), 1+h.env.dice.below(300<<10)
	asked, last := fmt.Sprintf("bytes=%d-%d", from, from+length-1), h.env.dice.chance(3)
	if last {
		asked = fmt.Sprintf("bytes=-%d", length)
	}
	out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: key, Range: &asked})
	if err != nil {
		return "", "", err
	}
	defer func() { _ = out.Body.Close() }()
	var first, end, size int
	_, _ = fmt.Sscanf(aws.ToString(out.ContentRange), "bytes %d-%d/%d", &first, &end, &size)
	if last {
		length = min(length, size)
		from = size - length
	}
	length = min(length, size-from)
	if op := out.Metadata["op"]; first != from || end != from+length-1 || size > mostBytes {
		return op, fmt.Sprintf("asked for %s of %s, got %q", asked, op, aws.ToString(out.ContentRange)), nil
	}
	return checkRange(out.Body, out.Metadata["op"], from, length, size)
}

// listed looks an object up in the list. No object is deleted, and an equal ETag implies an equal size.
func listed(ctx context.Context, c *s3.Client, bucket, key *string, as *s3.GetObjectOutput) (wrong string, err error) {
	list, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: bucket, Prefix: key})
	if err != nil {
		return "", err
	}
	for _, o := range list.Contents {
		if *o.Key != *key {
			continue
		}
		if aws.ToString(o.ETag) == aws.ToString(as.ETag) && aws.ToInt64(o.Size) != aws.ToInt64(as.ContentLength) {
			return fmt.Sprintf("it has %d bytes and is listed with %d", aws.ToInt64(as.ContentLength), aws.ToInt64(o.Size)), nil
		}
		return "", nil
	}
	return "it is there and not in the list", nil
}

// The outcomes.

// s3Outcome classifies an answer of the S3 port (docs/s3.md). The port answers 503 ServiceUnavailable both if nothing
// was changed and if the outcome is unknown; its message distinguishes them.
func s3Outcome(status int, code, message string) history.Outcome {
	switch {
	case status == http.StatusServiceUnavailable && code == "SlowDown":
		return history.Refused
	case status == http.StatusServiceUnavailable && strings.Contains(message, "Nothing was changed"):
		return history.Failed
	case status >= 400 && status < 500 && code != "":
		return history.Refused
	}
	return history.Unknown
}

// s3Failure classifies the error of one attempt, or of a call with one attempt; nil for nil.
func s3Failure(err error) *failure {
	if err == nil {
		return nil
	}
	f := failed(history.Unknown, "", err)
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		f.code = e.ErrorCode()
		if r, ok := errors.AsType[*awshttp.ResponseError](err); ok {
			f.outcome = s3Outcome(r.HTTPStatusCode(), f.code, e.ErrorMessage())
		}
	} else if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" { // nothing was sent
		f.outcome, f.code = history.Failed, "unreachable"
	}
	return f
}

// fenced reports that an S3 code is a refusal by the fence.
func fenced(code string) bool {
	for _, c := range fence.Codes {
		// ErrUndrained shares its code with unavailable servers.
		if c.S3Code == code && !errors.Is(c.Err, fence.ErrUndrained) {
			return true
		}
	}
	return false
}

// attempts are the attempts that a client library made for one call. The last one's answer is the call's. It does not
// decide an earlier attempt without an answer, unless the fence refused it: the attempts of a call are one write
// (docs/s3.md, "Late attempts"), and a stale write stays stale.
type attempts struct {
	mu      sync.Mutex
	made    int
	unknown bool
}

func (a *attempts) add(f *failure) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.made++
	a.unknown = a.unknown || f != nil && f.outcome == history.Unknown
}

// failure returns the failure of the call, whose last answer is f.
func (a *attempts) failure(f *failure) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.made == 0 && f.code == "":
		f.outcome = history.Failed
	case a.unknown && !fenced(f.code):
		f.outcome = history.Unknown
	}
	return f
}

type attemptsKey struct{}

// noteAttempts adds the attempts of each call to the attempts in its context.
func noteAttempts(stack *middleware.Stack) error {
	note := middleware.FinalizeMiddlewareFunc("noteAttempts", func(
		ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler,
	) (middleware.FinalizeOutput, middleware.Metadata, error) {
		out, metadata, err := next.HandleFinalize(ctx, in)
		if a, ok := ctx.Value(attemptsKey{}).(*attempts); ok {
			a.add(s3Failure(err))
		}
		return out, metadata, err
	})
	return stack.Finalize.Insert(note, "Retry", middleware.After)
}

// The pauses within a body.

// pace makes one request stop several times in the middle of its body. Its pauses run on the transport's goroutine. end
// waits for a running pause.
type pace struct {
	mu    sync.Mutex
	ctx   context.Context //nolint:containedctx // of the pauses
	stop  context.CancelFunc
	pause func(context.Context)
	after []int // ascending numbers of bytes after which it pauses
	sent  int
}

type paceKey struct{}

func withPace(ctx context.Context, size int, pause func(context.Context), pauses int) (context.Context, *pace) {
	p := &pace{pause: pause}
	p.ctx, p.stop = context.WithCancel(ctx)
	for i := range pauses {
		p.after = append(p.after, size*(i+1)/(pauses+1))
	}
	return context.WithValue(ctx, paceKey{}, p), p
}

func (p *pace) end() {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.after = nil
}

// paced is a transport that sends bodies with the pace in their context; the first attempt that reaches a pause takes
// it. It sends what should go over TLS in plain.
type paced struct{ *http.Transport }

func s3Transport() *http.Transport { return awshttp.NewBuildableClient().GetTransport() } // the SDK's default

func (t paced) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme = "http"
	if p, ok := r.Context().Value(paceKey{}).(*pace); ok && r.Body != nil && r.Body != http.NoBody {
		r.Body = pacedBody{r.Body, p}
	}
	return t.Transport.RoundTrip(r)
}

type pacedBody struct {
	io.ReadCloser

	pace *pace
}

// Read fails if the call was abandoned during a pause.
func (b pacedBody) Read(to []byte) (int, error) {
	p := b.pace
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.after) > 0 && p.sent < p.after[0] {
		to = to[:min(len(to), p.after[0]-p.sent)]
	}
	n, err := b.ReadCloser.Read(to)
	p.sent += n
	for len(p.after) > 0 && p.sent >= p.after[0] {
		p.after = p.after[1:]
		p.pause(p.ctx)
	}
	if over := p.ctx.Err(); over != nil {
		return 0, over
	}
	return n, err
}

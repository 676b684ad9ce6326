package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	at      atomic.Int32 // the gateway in use; an error switches to the next
}

// sending makes a surface that writes objects in one way.
func sending(send func(context.Context, *objects, write) error) func(*env) (acquire, error) {
	return over((*env).lease, func(e *env, a ask, t *term) access { return newObjects(e, a, t, send) })
}

func newObjects(e *env, a ask, t *term, send func(context.Context, *objects, write) error) *objects {
	h := &objects{term: t, env: e, send: send, whole: a.whole}
	h.at.Store(int32(e.dice.below(len(e.cfg.Gateways))))
	return h
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

// do makes one call of the SDK, with its attempts, and classifies its error.
func do[In, Out any](
	ctx context.Context, h *objects, call func(*s3.Client, context.Context, *In, ...func(*s3.Options)) (*Out, error), in *In, how ...func(*s3.Options),
) (*Out, error) {
	if err := h.prepare(ctx); err != nil {
		return nil, err
	}
	made := new(attempts)
	out, err := call(h.clients[h.next(false)], context.WithValue(ctx, attemptsKey{}, made), in, how...)
	if err == nil {
		return out, nil
	}
	h.next(true)
	return nil, made.failure(s3Failure(err))
}

// next is the index of the gateway in use, after which the next one may be used.
func (h *objects) next(moves bool) int {
	at := h.at.Load()
	if moves {
		h.at.Add(1)
	}
	return int(at) % len(h.env.cfg.Gateways)
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
	in := objectOf(w.set[0], size)
	ctx, p := withPace(ctx, size, w.pause, pauses)
	defer p.end()
	_, err := do(ctx, h, (*s3.Client).PutObject, in, how...)
	return err
}

// objectOf is the object that sets a register.
func objectOf(s setting, size int) *s3.PutObjectInput {
	bucket, key := place(s.register)
	return &s3.PutObjectInput{Bucket: bucket, Key: key, Metadata: map[string]string{"op": s.value}, Body: bytes.NewReader(bodyOf(s.value, size))}
}

const leastPart = 5 * mebibyte // the port's minimum, except for the last part

// multipart writes an object of two or three parts, one after the other with pauses between them, or concurrently.
// Nothing is visible before the completion, so an earlier failure is Failed. Sometimes the upload is aborted there.
func multipart(ctx context.Context, h *objects, w write) error {
	dice := h.env.dice
	parts := make([]types.CompletedPart, 2+dice.below(4)/3)
	o := objectOf(w.set[0], (len(parts)-1)*leastPart+1+dice.below(mebibyte))
	body := o.Body.(*bytes.Reader)
	made, err := do(ctx, h, (*s3.Client).CreateMultipartUpload,
		&s3.CreateMultipartUploadInput{Bucket: o.Bucket, Key: o.Key, Metadata: o.Metadata})
	if err != nil {
		return unwritten(err)
	}
	w.pause(ctx)
	var all errgroup.Group
	together := dice.chance(2)
	for i := range parts {
		send := func() error {
			number := int32(i + 1)
			out, err := do(ctx, h, (*s3.Client).UploadPart, &s3.UploadPartInput{
				Bucket: o.Bucket, Key: o.Key, UploadId: made.UploadId, PartNumber: &number,
				Body: io.NewSectionReader(body, int64(i)*leastPart, min(leastPart, body.Size()-int64(i)*leastPart)),
			})
			if err == nil {
				parts[i] = types.CompletedPart{ETag: out.ETag, PartNumber: &number}
			}
			return err
		}
		if together {
			all.Go(send)
		} else if err == nil {
			err = send()
			w.pause(ctx)
		}
	}
	if err = errors.Join(err, all.Wait()); err == nil && dice.chance(12) {
		err = failed(history.Failed, "aborted", errors.New("the upload was given up"))
	}
	if err != nil {
		if dice.chance(2) { // otherwise the sweep removes it
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_, _ = do(ctx, h, (*s3.Client).AbortMultipartUpload,
				&s3.AbortMultipartUploadInput{Bucket: o.Bucket, Key: o.Key, UploadId: made.UploadId})
		}
		return unwritten(err)
	}
	w.pause(ctx)
	return h.complete(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: o.Bucket, Key: o.Key, UploadId: made.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
}

// complete completes an upload. It repeats the call if it was not answered, and sometimes otherwise: a repetition
// returns the first answer. If the fence refuses a repetition, the upload was not completed before, and can't be any
// more.
func (h *objects) complete(ctx context.Context, in *s3.CompleteMultipartUploadInput) error {
	_, first := do(ctx, h, (*s3.Client).CompleteMultipartUpload, in)
	f, _ := errors.AsType[*failure](first)
	if first != nil && f.outcome != history.Unknown || ctx.Err() != nil || h.env.dice.chance(2) {
		return first
	}
	_, again := do(ctx, h, (*s3.Client).CompleteMultipartUpload, in)
	if f, ok := errors.AsType[*failure](again); first == nil || again != nil && !(ok && fenced(f.code)) {
		return first
	}
	return again
}

// read reads the object in one of the ways of programs: whole, in part, its metadata alone, or whole and listed.
func (h *objects) read(ctx context.Context, register string) (saw, wrong string, err error) {
	bucket, key := place(register)
	way := h.env.dice.below(8)
	if h.whole {
		way = 7
	}
	switch way {
	case 0:
		var out *s3.HeadObjectOutput
		if out, err = do(ctx, h, (*s3.Client).HeadObject, &s3.HeadObjectInput{Bucket: bucket, Key: key}); err == nil {
			if saw = out.Metadata["op"]; saw == "" {
				wrong = "an object without the metadata op"
			}
		}
	case 1, 2:
		saw, wrong, err = h.readPart(ctx, bucket, key)
	default:
		saw, wrong, err = h.readWhole(ctx, bucket, key, way == 3)
	}
	if f, ok := errors.AsType[*failure](err); ok && (f.code == "NoSuchKey" || f.code == "NotFound") { // HEAD's answer has no code
		return "", "", nil
	}
	return saw, wrong, err
}

// readWhole may look the object up in the list, too. No object is deleted, and an equal ETag implies an equal size.
func (h *objects) readWhole(ctx context.Context, bucket, key *string, lists bool) (saw, wrong string, err error) {
	out, err := do(ctx, h, (*s3.Client).GetObject, &s3.GetObjectInput{Bucket: bucket, Key: key})
	if err != nil {
		return "", "", err
	}
	defer func() { _ = out.Body.Close() }()
	if saw, wrong, err = check(out.Body, out.Metadata["op"]); err != nil || wrong != "" || !lists {
		return saw, wrong, err
	}
	list, err := do(ctx, h, (*s3.Client).ListObjectsV2, &s3.ListObjectsV2Input{Bucket: bucket, Prefix: key})
	if err != nil {
		return saw, "", err
	}
	i := slices.IndexFunc(list.Contents, func(o types.Object) bool { return *o.Key == *key })
	if i < 0 {
		return saw, "it is there and not in the list", nil
	}
	if o := list.Contents[i]; aws.ToString(o.ETag) == aws.ToString(out.ETag) && aws.ToInt64(o.Size) != aws.ToInt64(out.ContentLength) {
		wrong = fmt.Sprintf("it has %d bytes and is listed with %d", aws.ToInt64(out.ContentLength), aws.ToInt64(o.Size))
	}
	return saw, wrong, nil
}

// readPart reads a range: from an offset on, or the last bytes. If the object is too small, it reads the whole.
func (h *objects) readPart(ctx context.Context, bucket, key *string) (saw, wrong string, err error) {
	from, length := h.env.dice.below(100<<10), 1+h.env.dice.below(300<<10)
	asked, last := fmt.Sprintf("bytes=%d-%d", from, from+length-1), h.env.dice.chance(3)
	if last {
		asked = fmt.Sprintf("bytes=-%d", length)
	}
	out, err := do(ctx, h, (*s3.Client).GetObject, &s3.GetObjectInput{Bucket: bucket, Key: key, Range: &asked})
	if f, ok := errors.AsType[*failure](err); ok && f.code == "InvalidRange" {
		return h.readWhole(ctx, bucket, key, false)
	}
	if err != nil {
		return "", "", err
	}
	defer func() { _ = out.Body.Close() }()
	var first, end, size int
	_, _ = fmt.Sscanf(aws.ToString(out.ContentRange), "bytes %d-%d/%d", &first, &end, &size)
	if last {
		from = max(0, size-length)
	}
	length = min(length, size-from)
	if op := out.Metadata["op"]; first != from || end != from+length-1 || size > mostBytes {
		return op, fmt.Sprintf("asked for %s of %s, got %q", asked, op, aws.ToString(out.ContentRange)), nil
	}
	return checkRange(out.Body, out.Metadata["op"], from, length, size)
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

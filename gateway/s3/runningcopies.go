package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

// slots limit how many of a kind are in progress.
type slots struct {
	limit int64
	used  atomic.Int64
}

// take takes a slot, and returns false if none is free.
func (s *slots) take() bool {
	if s.used.Add(1) > s.limit {
		s.used.Add(-1)
		return false
	}
	return true
}

func (s *slots) free() { s.used.Add(-1) }

// copies are the copies in progress. A copy may take longer than its client waits, which then sends its request again:
// all attempts of one request wait for one copy.
type copies struct {
	uploads  *slots          // a copy is an upload
	life     context.Context //nolint:containedctx // ends when the server stops
	end      context.CancelFunc
	alone    time.Duration // how long a copy goes on without a client
	patience time.Duration // of a client: then its answer begins

	mu      sync.Mutex
	running map[copyAttempt]*copyRun
	all     sync.WaitGroup
}

func newCopies(uploads *slots, alone, patience time.Duration) *copies {
	c := &copies{uploads: uploads, alone: alone, patience: patience, running: map[copyAttempt]*copyRun{}}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// copyAttempt is what the attempts of one request have in common. What they say of the source belongs to it, but not
// the version that they find there.
type copyAttempt struct {
	bucket, key, invocation, what string

	resource, seal string
	token          int64
}

func copyAttemptOf(ch objects.Change, what string) copyAttempt {
	return copyAttempt{
		bucket: ch.Bucket, key: ch.Key, invocation: ch.Invocation, what: what,
		resource: ch.Proof.Resource, seal: string(ch.Proof.SealHash), token: int64(ch.Proof.Token),
	}
}

// copyRun is one copy.
type copyRun struct {
	of      copyAttempt
	from    objects.Stored // its source
	id      blob.ID        // of the version or stage that it makes, if no earlier attempt made one
	giveUp  context.CancelFunc
	waiting int           // clients; guarded by copies.mu
	alone   *time.Timer   // gives it up; nil while clients wait; guarded by copies.mu
	done    chan struct{} // closed when result is set
	result  copyResult
}

// copyResult is the result of a copy: a version, a stage or a part.
type copyResult struct {
	version objects.Stored
	part    objects.Part
	err     error
}

// join returns the copy that an earlier attempt began, or begins it. reading ends when the copy is given up. Call leave
// afterwards.
func (c *copies) join(of copyAttempt, from objects.Stored, do func(reading context.Context, id blob.ID) copyResult) (*copyRun, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if run := c.rejoin(of); run != nil {
		return run, nil
	}
	if c.life.Err() != nil || !c.uploads.take() {
		return nil, s3err.GetAPIError(s3err.ErrSlowDown)
	}
	reading, giveUp := context.WithCancel(c.life)
	run := &copyRun{of: of, from: from, id: blob.NewID(), giveUp: giveUp, waiting: 1, done: make(chan struct{})}
	if of.invocation != "" { // otherwise nothing tells its attempts apart from other requests
		c.running[of] = run
	}
	c.all.Go(func() {
		defer giveUp()
		defer c.publish(run)
		defer c.uploads.free()
		defer func() {
			if r := recover(); r != nil {
				run.result.err = fmt.Errorf("panic in a copy: %v", r)
			}
		}()
		run.result = do(reading, run.id)
	})
	return run, nil
}

// find returns the copy that an earlier attempt began; nil if there is none. Call leave afterwards.
func (c *copies) find(of copyAttempt) *copyRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rejoin(of)
}

// rejoin returns the copy that an earlier attempt began, for one more client; nil if there is none. The caller holds
// mu.
func (c *copies) rejoin(of copyAttempt) *copyRun {
	run := c.running[of]
	if run == nil {
		return nil
	}
	run.waiting++
	if run.alone != nil {
		run.alone.Stop()
		run.alone = nil
	}
	return run
}

// publish publishes a copy's result.
func (c *copies) publish(run *copyRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(run.done)
	c.drop(run)
}

// leave tells that a client waits no longer. A copy for which nobody waits is given up after a while.
func (c *copies) leave(run *copyRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	run.waiting--
	if run.waiting > 0 || run.over() {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(c.alone, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if run.alone == timer && !run.over() { // no client has joined since
			c.drop(run)
			run.giveUp()
		}
	})
	run.alone = timer
}

func (c *copies) drop(run *copyRun) {
	if c.running[run.of] == run {
		delete(c.running, run.of)
	}
}

func (run *copyRun) over() bool {
	select {
	case <-run.done:
		return true
	default:
		return false
	}
}

// stop gives up all copies and waits until they have discarded what they had begun.
func (c *copies) stop(limit time.Duration) {
	c.mu.Lock()
	c.end()
	c.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.all.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(limit):
	}
}

// errGivenUp ends a copy whose clients have left.
var errGivenUp = errors.New("the copy was given up, because no client waits for it or the server stops")

// await waits for a copy as long as any client does. Unless it is over by then, its answer is slow.
func (c *copies) await(r request, run *copyRun) (over bool) {
	limit := time.NewTimer(c.patience)
	defer limit.Stop()
	select {
	case <-run.done:
		return true
	case <-limit.C:
	}
	if r.http.Request.Header.IsHTTP11() {
		return false
	}
	<-run.done // HTTP/1.0 has no body of unknown length
	return true
}

// answerSlowly sends the answer once versitygw has written the headers of this one.
func (c *copies) answerSlowly(r request, run *copyRun, document func(copyResult) (any, error)) {
	r.http.SetUserValue(slowAnswerKey, &slowAnswer{
		run: run, leave: func() { c.leave(run) }, pause: c.patience / 2, document: document,
	})
}

// slowAnswer is the answer of a copy that takes long, as S3 gives it: status and headers, then blanks while the copy
// goes on, then its result or an error. Otherwise clients would give up waiting, after a minute by default, and send
// the request again.
type slowAnswer struct {
	run      *copyRun
	leave    func()
	pause    time.Duration // between two blanks
	document func(copyResult) (any, error)
}

// slowAnswerKey is the key under which a slow answer reaches the gate.
const slowAnswerKey = "fencegate slow answer"

// send replaces the answer. report receives the result, when it is known.
func (s *slowAnswer) send(c fiber.Ctx, report func(status int, code string)) {
	requestID, hostID := utils.EnsureRequestIDs(c)
	c.Response().Header.SetContentType(fiber.MIMEApplicationXML)
	c.Response().SetBodyStream(&slowBody{
		slowAnswer: s, requestID: requestID, hostID: hostID, pending: []byte(xml.Header),
		report: report, status: http.StatusBadRequest, code: "RequestTimeout",
	}, -1)
}

// slowBody is the body of a slow answer. The server flushes what each Read returns.
type slowBody struct {
	*slowAnswer

	requestID, hostID string
	pending           []byte
	complete          bool // nothing follows the pending bytes
	report            func(status int, code string)
	status            int    // of the result; until then, that of a client that left
	code              string // "" for success
	closed            sync.Once
}

var _ io.ReadCloser = (*slowBody)(nil)

// Read implements [io.Reader].
func (s *slowBody) Read(p []byte) (int, error) {
	if len(s.pending) == 0 && !s.complete {
		pause := time.NewTimer(s.pause)
		defer pause.Stop()
		select {
		case <-s.run.done:
			s.pending, s.complete = s.end(), true
		case <-pause.C:
			s.pending = []byte(" ")
		}
	}
	if len(s.pending) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.pending)
	s.pending = s.pending[n:]
	return n, nil
}

// end returns the result as a document, without the declaration that was sent.
func (s *slowBody) end() []byte {
	document, err := s.document(s.run.result)
	var text []byte
	if err == nil {
		text, err = xml.Marshal(document)
	}
	if err == nil {
		s.status, s.code = http.StatusOK, ""
		return text
	}
	e, ok := errors.AsType[s3err.S3Error](err)
	if !ok {
		e = s3err.GetAPIError(s3err.ErrInternalError)
	}
	s.status, s.code = e.StatusCode(), e.BaseError().Code
	text = e.XMLBody(s.requestID, s.hostID)
	if at := bytes.Index(text, []byte("?>")); at >= 0 {
		text = bytes.TrimSpace(text[at+len("?>"):])
	}
	return text
}

// Close implements [io.Closer].
func (s *slowBody) Close() error {
	s.closed.Do(func() {
		s.leave()
		s.report(s.status, s.code)
	})
	return nil
}

package s3

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
)

// slow is the answer of a copy that takes long, as S3 gives it: status and headers, then blanks while the copy goes on,
// then its result or an error. Otherwise clients would give up waiting, after a minute by default, and send the request
// again.
type slow struct {
	run      *copying
	leave    func()
	pause    time.Duration // between two blanks
	document func(copied) (any, error)
}

// slowAnswer is the key under which a slow answer reaches the gate.
const slowAnswer = "fencegate slow answer"

// await waits for a copy as long as any client does. Unless it is over by then, its answer is slow.
func (b *backend) await(r request, run *copying) (over bool) {
	limit := time.NewTimer(b.cfg.patience)
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
func (b *backend) answerSlowly(r request, run *copying, document func(copied) (any, error)) {
	r.http.SetUserValue(slowAnswer, &slow{
		run: run, leave: func() { b.copies.leave(run) }, pause: b.cfg.patience / 2, document: document,
	})
}

// send replaces the answer. told receives the result, when it is known.
func (s *slow) send(c fiber.Ctx, told func(status int, code string)) {
	requestID, hostID := utils.EnsureRequestIDs(c)
	c.Response().Header.SetContentType(fiber.MIMEApplicationXML)
	c.Response().SetBodyStream(&slowBody{
		slow: s, requestID: requestID, hostID: hostID, pending: []byte(xml.Header),
		told: told, status: http.StatusBadRequest, code: "RequestTimeout",
	}, -1)
}

// slowBody is the body of a slow answer. The server flushes what each Read returns.
type slowBody struct {
	*slow

	requestID, hostID string
	pending           []byte
	complete          bool // nothing follows the pending bytes
	told              func(status int, code string)
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
		s.told(s.status, s.code)
	})
	return nil
}

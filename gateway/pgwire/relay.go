package pgwire

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// relay carries the bytes of one session: one goroutine per direction, one write per read.
type relay struct {
	client         *client
	upstream       *backend
	session        *session
	admission      *admission
	authentication *authentication
	events         *events
	fences         *fences
	counters       *counters

	refusal loginRefusal // with which PostgreSQL refused the login; used by the goroutine that reads PostgreSQL
	writing sync.Mutex   // of writes to PostgreSQL once the session is open; locked before the session's mu
}

// carry returns when both directions have ended.
func (r *relay) carry() {
	var fromClient sync.WaitGroup
	fromClient.Go(func() {
		defer r.session.recoverPanic()
		r.clientToServer()
	})
	var err error
	func() {
		defer r.session.recoverPanic()
		err = r.serverToClient()
	}()
	if r.session.isOpen() {
		r.counters.active.Add(-1)
	}
	if err != nil {
		r.client.log().Warn("a PostgreSQL session ended early", "error", err)
	}
	_ = r.client.raw.Close()
	_ = r.upstream.conn.Close()
	r.session.endLogin()
	fromClient.Wait()
}

// clientToServer ends when the client does, or when either connection is closed.
func (r *relay) clientToServer() {
	from := newSource(r.client.conn)
	defer from.free()
	var stream clientStream
	b, err := r.clientLogin(from, &stream)
	for ; ; b, err = from.read() {
		if len(b) > 0 {
			stream.scan(b)
			if passed, werr := r.passOn(b, &stream); !passed || werr != nil {
				return // or PostgreSQL has gone; the other direction still reads its last messages
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			r.session.noteHangUp()
			_ = closeWrite(r.upstream.conn) // as the client did: PostgreSQL ends the session after its answer
			return
		case isTimeout(err):
			if r.session.noteTimeout() {
				continue
			}
			return // the other direction has the same deadline, and ends the session
		default:
			_ = r.upstream.conn.Close() // the client is lost: its transaction rolls back
			return
		}
	}
}

// clientLogin passes on the messages of the login and nothing else until the session is open; a statement that a client
// sends ahead waits. It returns the bytes that it has withheld, as a read would.
func (r *relay) clientLogin(from *source, stream *clientStream) ([]byte, error) {
	for {
		b, err := from.read()
		at := stream.untilStatement(b)
		if stream.terminated {
			r.session.noteTerminate()
		}
		if stream.proved {
			r.session.proved.Store(true)
		}
		if at > 0 {
			if _, werr := r.upstream.conn.Write(b[:at]); werr != nil {
				return nil, nil //nolint:nilerr // the next write fails as well
			}
		}
		switch {
		case at < len(b):
			<-r.session.opening.Done()
			return b[at:], err
		case err == nil, isTimeout(err) && r.session.noteTimeout():
		default:
			r.session.endLogin()
			return nil, err
		}
	}
}

// passOn writes what the client has sent. It returns false if the session has been ended.
func (r *relay) passOn(b []byte, stream *clientStream) (passed bool, err error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	if !r.session.startForward(stream) {
		return false, nil
	}
	_, err = r.upstream.conn.Write(b)
	r.session.toServerBusy.Store(false)
	return true, err
}

// serverToClient does all writes to the client, so that a FATAL never falls into a message. It returns an error if
// PostgreSQL broke off.
func (r *relay) serverToClient() error {
	from := newSource(r.upstream.conn)
	defer from.free()
	var stream serverStream
	if r.events.report != nil {
		stream.errors.refused = r.events.refusal
	}
	ready, err := r.serverLogin(from, &stream)
	if err == nil {
		r.upstream.key = stream.key
		ready, err = r.admission.admit(ready)
	}
	if err == nil {
		switch {
		case r.opens():
			err = r.pump(from, ready, &stream)
		case r.session.ending():
			err = errEnded
		default:
			err = os.ErrDeadlineExceeded
		}
	}
	return r.shutDown(&stream, err)
}

// serverLogin relays the server's side of the login, with any method, up to the first ReadyForQuery. It returns the
// first bytes of that message, which it withholds.
func (r *relay) serverLogin(from *source, stream *serverStream) (ready []byte, err error) {
	for {
		b, err := from.read()
		at := stream.untilReady(b)
		if at > 0 {
			if stream.typ == typeError {
				r.refusal = loginRefusal{errorField(b[:at], 'C'), errorField(b[:at], 'F')}
			}
			if _, werr := r.client.conn.Write(b[:at]); werr != nil {
				return nil, errClientGone
			}
		}
		switch {
		case at < len(b):
			return b[at:], nil
		case err == nil:
		case isTimeout(err) && r.session.ending():
			return nil, errEnded
		default:
			return nil, err
		}
	}
}

// opens opens the session, unless it must end.
func (r *relay) opens() bool {
	if !r.session.finishLogin() {
		return false
	}
	if !r.session.proved.Load() {
		r.authentication.warnUnproved(r.client.log())
	}
	r.counters.sessions.Add(1)
	r.counters.active.Add(1)
	r.counters.LoggedIn(time.Since(r.client.began))
	return true
}

// pump is the data path: no allocation, no copy, one write per read. It begins with b, which has been read already.
func (r *relay) pump(from *source, b []byte, stream *serverStream) error {
	for {
		if r.isSuperseded(stream, b) {
			return errEnded
		}
		if len(b) > 0 {
			stream.scan(b)
			if stream.ready > 0 || stream.copies || stream.fails {
				r.session.noteAnswer(stream)
			}
			r.session.toClientBusy.Store(true)
			_, err := r.client.conn.Write(b)
			r.session.toClientBusy.Store(false)
			if err != nil {
				return errClientGone
			}
			if r.session.noteDelivery(stream) {
				return errEnded
			}
			if stream.ready > 0 && stream.boundary() {
				from.expectPause()
			}
		}
		var err error
		b, err = from.read()
		switch {
		case err == nil || len(b) > 0: // an error that came with bytes is returned again
		case isTimeout(err):
			if r.session.onWakeUp(stream) {
				return errEnded
			}
		default:
			return err
		}
	}
}

// endLookTimeout bounds the query for the fences of a session that PostgreSQL has ended.
const endLookTimeout = 500 * time.Millisecond

// isSuperseded reports whether PostgreSQL ends the session, FATAL 57P01, because of a newer grant; the client then gets
// ZF001 instead. Arming ends the backends that wait behind an older grant before the gateway is notified.
func (r *relay) isSuperseded(stream *serverStream, b []byte) bool {
	if len(b) == 0 || b[0] != typeError || !stream.boundary() || errorField(b, 'C') != codeAdminShutdown {
		return false
	}
	if resources := r.session.resources(); len(resources) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), endLookTimeout)
		_ = r.fences.look(ctx, resources...) // on an error PostgreSQL's own message is passed on
		cancel()
	}
	return r.session.isCut()
}

// shutDown closes both sides as cleanly as the state of the streams allows. cause is why the pump ended. The error that
// it returns should be logged.
func (r *relay) shutDown(stream *serverStream, cause error) error {
	r.authentication.explain(r.refusal, r.client, r.upstream.conn) // also if the client has disconnected after PostgreSQL's refusal
	end := r.session.outcome()
	switch {
	case errors.Is(cause, errClientGone):
		if end.cut {
			r.upstream.halt(end.unanswered, r.client.log())
		}
		if end.cut && end.why != nil && !end.left {
			r.sendReason(end, false) // it was cut while it did not read
		}
		return nil
	case errors.Is(cause, errEnded):
		if end.idle && !end.unanswered { // otherwise a statement that was sent ahead may run
			r.terminate()
		} else {
			r.upstream.halt(end.unanswered, r.client.log())
		}
		_ = r.upstream.conn.Close() // others wait for its locks
		if !end.left {              // a client that has disconnected needs no error
			r.sendReason(end, stream.boundary())
		}
		return nil
	case isTimeout(cause):
		if stream.boundary() {
			r.client.sendFatal(errLoginTooLong, shortLinger)
		}
		return nil
	case end.left:
		return nil
	case stream.typ == typeError && stream.boundary(): // PostgreSQL has sent its own reason
		r.client.linger(shortLinger)
		return nil
	}
	if stream.boundary() {
		r.client.sendFatal(&fatalError{
			code: codeConnectionFailure, message: "the gateway has lost its connection to PostgreSQL at " + r.upstream.conn.RemoteAddr().String(),
			hint: mayBeCommitted,
		}, shortLinger)
	}
	if errors.Is(cause, io.EOF) {
		return errors.New("PostgreSQL closed the connection")
	}
	return cause
}

// terminate ends the session in PostgreSQL.
func (r *relay) terminate() {
	_ = r.upstream.conn.SetWriteDeadline(time.Now().Add(goodbyeTimeout))
	r.writing.Lock() // never inside a message of the client
	defer r.writing.Unlock()
	_, _ = r.upstream.conn.Write([]byte{typeTerminate, 0, 0, 0, 4})
}

var errLoginTooLong = &fatalError{code: codeConnectionFailure, message: "the login took too long"}

// sendReason tells the client why the gateway ends its session, unless the stream is inside a message. If an answer is
// due, the open statement may be a COMMIT, which PostgreSQL may still complete.
func (r *relay) sendReason(end outcome, boundary bool) {
	why := cmp.Or(end.why, errStopping)
	if end.why != nil && end.open {
		r.counters.Ended(why.code)
		r.events.ended(why, end.unanswered || !end.idle)
		r.client.log().Info("a PostgreSQL session was ended", "sqlstate", why.code, "error", why, "detail", why.detail)
	}
	if end.unanswered {
		why = why.withHint(mayBeCommitted)
	}
	if boundary {
		r.client.sendFatal(why, shortLinger)
	}
}

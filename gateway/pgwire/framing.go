package pgwire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

const (
	headerBytes   = 5 // type, length
	maxBackendKey = keyPidBytes + maxCancelKeyBytes
)

// framer follows the 5-byte headers of a stream of messages through reads of any size. It buffers nothing except a
// header split between two reads.
type framer struct {
	skip uint32 // remaining bytes of the current message
	have int    // bytes in head
	head [headerBytes]byte
	typ  byte // type of the current message, or of the last one
	lost bool // after an impossible header: boundaries are unknown
}

// boundary reports whether the stream is between two messages.
func (f *framer) boundary() bool { return f.skip == 0 && f.have == 0 && !f.lost }

// next consumes b up to the end of the next header. It returns that message's type, or 0 if b ends first, and the rest
// of b.
func (f *framer) next(b []byte) (typ byte, rest []byte) {
	if f.lost {
		return 0, nil
	}
	if uint32(len(b)) <= f.skip { // a read is far below 4 GiB
		f.skip -= uint32(len(b))
		return 0, nil
	}
	b = b[f.skip:]
	f.skip = 0
	if f.have == 0 && len(b) >= headerBytes {
		f.begin(b[0], binary.BigEndian.Uint32(b[1:headerBytes]))
		return f.typ, b[headerBytes:]
	}
	n := copy(f.head[f.have:], b)
	f.have += n
	if f.have < headerBytes {
		return 0, nil
	}
	f.have = 0
	f.begin(f.head[0], binary.BigEndian.Uint32(f.head[1:]))
	return f.typ, b[n:]
}

func (f *framer) begin(typ byte, length uint32) {
	f.typ = typ
	if length < 4 || typ == 0 {
		f.lost = true
		return
	}
	f.skip = length - 4
}

// Message types that the relay looks for.
const (
	typeReadyForQuery   = 'Z'
	typeError           = 'E'
	typeCopyInResponse  = 'G'
	typeDataRow         = 'D'
	typeNotice          = 'N'
	typeBackendKeyData  = 'K'
	typeParameterStatus = 'S'

	typeQuery        = 'Q'
	typeSync         = 'S'
	typeFunctionCall = 'F'
	typeFlush        = 'H'
	typeCopyData     = 'd'
	typeCopyDone     = 'c'
	typeCopyFail     = 'f'
	typeTerminate    = 'X'
	typePassword     = 'p' // and other answers to an authentication request
)

// serverStream follows what PostgreSQL sends.
type serverStream struct {
	framer
	bytes  int64  // in the last scan
	status byte   // of the last ReadyForQuery: 'I' idle, 'T' in a transaction, 'E' in a failed one
	ready  int    // ReadyForQuery messages completed in the last scan
	copyIn bool   // a CopyInResponse followed the last ReadyForQuery
	copies bool   // a CopyInResponse came in the last scan
	fails  bool   // an ErrorResponse came in the last scan
	cut    bool   // a read ended between a ReadyForQuery's header and its status
	key    []byte // the body of BackendKeyData, which follows the login
	errors errorWatch
}

func (s *serverStream) scan(b []byte) {
	s.bytes = int64(len(b))
	s.ready, s.copies, s.fails = 0, false, false
	if s.cut && len(b) > 0 {
		s.cut = false
		s.setStatus(b[0])
	}
	if s.typ == typeError && s.skip > 0 {
		s.errors.proceed(b, s.skip)
	}
	for {
		var typ byte
		typ, b = s.next(b)
		switch typ {
		case 0:
			return
		case typeReadyForQuery:
			switch {
			case s.skip == 0: // malformed: no status
			case len(b) == 0:
				s.cut = true
			default:
				s.setStatus(b[0])
			}
		case typeCopyInResponse:
			s.copyIn, s.copies = true, true
		case typeError:
			s.fails = true
			s.errors.start(b, s.skip)
		}
	}
}

func (s *serverStream) setStatus(status byte) {
	s.status = status
	s.ready++
	s.copyIn = false
}

// untilReady scans b up to the first ReadyForQuery and returns how many bytes precede it: len(b) if there is none.
func (s *serverStream) untilReady(b []byte) int {
	if s.typ == typeBackendKeyData && s.skip > 0 {
		s.takeKey(b)
	}
	rest := b
	for {
		if s.boundaryAfter(rest) {
			at := len(b) - len(rest) + int(s.skip)
			s.skip = 0
			return at
		}
		var typ byte
		if typ, rest = s.next(rest); typ == 0 {
			return len(b)
		}
		if typ == typeBackendKeyData {
			s.key = nil
			s.takeKey(rest)
		}
	}
}

// takeKey collects the body of BackendKeyData; rest begins with its first or next part.
func (s *serverStream) takeKey(rest []byte) {
	if s.skip <= maxBackendKey {
		s.key = append(s.key, rest[:min(int(s.skip), len(rest))]...)
	}
}

// boundaryAfter reports whether the next message begins inside b and is a ReadyForQuery.
func (s *serverStream) boundaryAfter(b []byte) bool {
	return !s.lost && s.have == 0 && uint32(len(b)) > s.skip && b[s.skip] == typeReadyForQuery
}

// errorField returns a field of a FATAL error at the end of b; "" if it has none.
func errorField(b []byte, field byte) string {
	_, fields, _ := bytes.Cut(b, []byte("\x00VFATAL"))
	_, value, _ := bytes.Cut(fields, []byte{0, field})
	value, _, _ = bytes.Cut(value, []byte{0})
	return string(value)
}

// maxErrorBytes bounds the buffer for an ErrorResponse that spans reads.
const maxErrorBytes = 16 << 10

// errorWatch finds the fence's refusals among the errors that pass. It buffers only an ErrorResponse that continues in
// the next read.
type errorWatch struct {
	refused func(body []byte) // receives the body of a refusal; nil: refusals are not watched
	cut     []byte
}

// start takes the beginning of an ErrorResponse's body of size bytes.
func (w *errorWatch) start(b []byte, size uint32) {
	switch {
	case w.refused == nil:
	case uint32(len(b)) >= size:
		w.finish(b[:size])
	default:
		w.cut = append(w.cut[:0], b[:min(len(b), maxErrorBytes)]...)
	}
}

// proceed takes more of a split body, of which left bytes remain.
func (w *errorWatch) proceed(b []byte, left uint32) {
	if w.refused == nil {
		return
	}
	n := min(len(b), int(left))
	w.cut = append(w.cut, b[:min(n, maxErrorBytes-len(w.cut))]...)
	if n == int(left) {
		w.finish(w.cut)
	}
}

func (w *errorWatch) finish(body []byte) {
	if bytes.HasPrefix(responseField(body, 'C'), []byte("ZF0")) {
		w.refused(body)
	}
}

// responseField returns a field of an ErrorResponse's body; nil if it has none.
func responseField(body []byte, field byte) []byte {
	for len(body) > 0 && body[0] != 0 {
		value, rest, whole := bytes.Cut(body[1:], []byte{0})
		if body[0] == field && whole {
			return value
		}
		body = rest
	}
	return nil
}

// clientStream follows what a client sends, to count the ReadyForQuery messages that are due.
type clientStream struct {
	framer
	bytes      int64 // in the last scan
	syncs      int   // messages in the last scan that a ReadyForQuery answers
	extended   bool  // a message of the extended protocol was in the last scan
	asks       bool  // something in the last scan has an answer, now or with the next Sync
	skippable  bool  // a Query or FunctionCall in the last scan is skipped if a message before it fails
	unsynced   bool  // something was sent whose answer ends with a Sync not yet sent
	terminated bool
	proved     bool // it has answered an authentication request
}

func (c *clientStream) scan(b []byte) {
	c.bytes, c.syncs = int64(len(b)), 0
	c.asks, c.extended, c.skippable = false, false, false
	for {
		var typ byte
		typ, b = c.next(b)
		switch typ {
		case 0:
			return
		case typeQuery, typeFunctionCall:
			c.syncs++
			c.skippable = c.skippable || c.unsynced
			c.asks, c.unsynced = true, false
		case typeSync:
			c.syncs++
			c.asks, c.unsynced, c.extended = true, false, true
		case typeCopyData, typeCopyDone, typeCopyFail, typeFlush:
		case typeTerminate:
			c.asks, c.terminated = true, true
		default: // Parse, Execute and others
			c.asks, c.unsynced, c.extended = true, true, true
		}
	}
}

// untilStatement scans b up to the first message that does not belong to a login, and returns how many bytes precede
// it: len(b) if there is none.
func (c *clientStream) untilStatement(b []byte) int {
	rest := b
	for {
		if !c.lost && c.have == 0 && uint32(len(rest)) > c.skip && !isLogin(rest[c.skip]) {
			at := len(b) - len(rest) + int(c.skip)
			c.skip = 0
			return at
		}
		var typ byte
		if typ, rest = c.next(rest); typ == 0 {
			return len(b)
		}
		c.terminated = c.terminated || typ == typeTerminate
		c.proved = c.proved || typ == typePassword
	}
}

func isLogin(typ byte) bool { return typ == typePassword || typ == typeTerminate }

// maxAnswerBytes bounds one message in the answer to sqlCheck.
const maxAnswerBytes = 64 << 10

// readMessage reads exactly one message.
func readMessage(r io.Reader) (typ byte, body []byte, err error) {
	var head [headerBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n > maxAnswerBytes {
		return 0, nil, fmt.Errorf("PostgreSQL sent a message %q of %d bytes", head[0], n)
	}
	body = make([]byte, n-4)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}

func encodeMessage(typ byte, body []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{typ}, uint32(len(body)+4))
	return append(b, body...)
}

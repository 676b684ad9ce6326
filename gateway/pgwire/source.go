package pgwire

import (
	"net"
	"syscall"
)

const (
	// bufferBytes is what one read takes at most. Larger messages pass in pieces.
	bufferBytes = 32 << 10
	// largeBytes is what a read takes that follows one which filled its buffer: with
	// long answers a third of the processor's time goes into the number of calls.
	largeBytes = 128 << 10
	// smallBytes is what a read takes whose bytes can't be waited for without one.
	smallBytes = 1 << 10
	// spareBuffers and spareLarge are kept for the next reads; more are left to the collector.
	spareBuffers = 128
	spareLarge   = 32
)

// spare and large, unlike a sync.Pool, lose none to a collection: the data path does
// not allocate.
var (
	spare = make(chan []byte, spareBuffers)
	large = make(chan []byte, spareLarge)
)

func takeBuffer(wantLarge bool) []byte {
	from, size := spare, bufferBytes
	if wantLarge {
		from, size = large, largeBytes
	}
	select {
	case b := <-from:
		return b
	default:
		return make([]byte, size)
	}
}

func giveBuffer(b []byte) {
	to := spare
	if len(b) == largeBytes {
		to = large
	}
	select {
	case to <- b:
	default:
	}
}

// source reads one direction of a session. While it waits it has no buffer: most
// sessions are idle most of the time.
type source struct {
	conn net.Conn
	raw  syscall.RawConn // nil where bytes may wait inside of conn, as with TLS
	try  func(fd uintptr) (done bool)

	buf  []byte // what read returned is in it; nil while it waits
	n    int
	err  error
	full bool // the last read filled its buffer

	small [smallBytes]byte // for the first read after a rest, without raw
	busy  bool             // more is under way, most likely
}

func newSource(conn net.Conn) *source {
	r := &source{conn: conn, raw: rawConn(conn)}
	r.try = r.tryRead // made once: a method value allocates
	return r
}

// read returns what there is, at least one byte or an error. The bytes are good
// until the next read.
func (r *source) read() ([]byte, error) {
	if r.raw == nil {
		return r.readThrough()
	}
	r.n, r.err = 0, nil
	if err := r.raw.Read(r.try); err != nil {
		return nil, err // the deadline, or closed
	}
	if r.buf == nil {
		return nil, r.err
	}
	return r.buf[:r.n], r.err
}

// readThrough reads into a small buffer until more than that is under way.
func (r *source) readThrough() ([]byte, error) {
	if !r.busy {
		r.free()
		n, err := r.conn.Read(r.small[:])
		r.busy = n == smallBytes
		return r.small[:n], err
	}
	if r.buf == nil {
		r.buf = takeBuffer(false)
	}
	n, err := r.conn.Read(r.buf)
	r.busy = n >= smallBytes
	return r.buf[:n], err
}

// rests says that nothing is expected soon.
func (r *source) rests() { r.busy = false }

// free gives the buffer back. What read returned is no longer good.
func (r *source) free() {
	if r.buf != nil {
		giveBuffer(r.buf)
		r.buf = nil
	}
}

package pgwire

import (
	"net"
	"syscall"
)

const (
	// bufferBytes is the size of one read. Larger messages pass in pieces.
	bufferBytes = 32 << 10
	// largeBytes is the size of a read after one that filled its buffer: for long answers the number of system calls
	// costs a third of the CPU time.
	largeBytes = 128 << 10
	// smallBytes is the size of a read that has to wait with a buffer.
	smallBytes = 1 << 10
	// spareBuffers and spareLarge bound the buffers kept for later reads; the collector frees the others.
	spareBuffers = 128
	spareLarge   = 32
)

// spare and large, unlike a sync.Pool, survive garbage collections: the data path does not allocate.
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

// source reads one direction of a session. It holds no buffer while it waits, because most sessions are idle most of
// the time.
type source struct {
	conn net.Conn
	raw  syscall.RawConn // nil if conn may buffer bytes itself, as TLS does
	try  func(fd uintptr) (done bool)

	buf  []byte // holds what read returned; nil while it waits
	n    int
	err  error
	full bool // the last read filled its buffer

	small [smallBytes]byte // for the first read after a pause, without raw
	busy  bool             // more data is probably coming
}

func newSource(conn net.Conn) *source {
	r := &source{conn: conn, raw: rawConn(conn)}
	r.try = r.tryRead // once: a method value allocates
	return r
}

// read returns the available bytes, at least one, or an error. The bytes are valid until the next read.
func (r *source) read() ([]byte, error) {
	if r.raw == nil {
		return r.readThrough()
	}
	r.n, r.err = 0, nil
	if err := r.raw.Read(r.try); err != nil {
		return nil, err // deadline exceeded, or closed
	}
	if r.buf == nil {
		return nil, r.err
	}
	return r.buf[:r.n], r.err
}

// tryRead does what net.Conn's Read does between two waits, but waits without a buffer. It returns false if there is
// nothing to read yet.
func (r *source) tryRead(fd uintptr) (done bool) {
	if r.full && len(r.buf) == bufferBytes {
		r.free()
	}
	if r.buf == nil {
		r.buf = takeBuffer(r.full)
	}
	n, wait, err := readNow(fd, r.buf)
	if n > 0 {
		r.n, r.full = n, n == len(r.buf)
		return true
	}
	if wait {
		r.full = false
	}
	r.err = err
	r.free()
	return !wait
}

// readThrough reads into the small buffer until a read fills it.
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

// expectPause notes that no data is expected soon.
func (r *source) expectPause() { r.busy = false }

// free returns the buffer. The bytes from read are no longer valid.
func (r *source) free() {
	if r.buf != nil {
		giveBuffer(r.buf)
		r.buf = nil
	}
}

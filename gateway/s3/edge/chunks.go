package edge

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
)

const (
	anyChunks    = "STREAMING-"                         // the begin of each payload that is a body in S3's chunks
	signedChunks = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" // and of those whose chunks are signed
)

// Chunked is an upload's body in S3's chunks, on its way to versitygw, which takes
// the object's bytes out of it.
//
// One whose chunks are signed ends with a chunk of no bytes, and only what comes
// behind a chunk makes versitygw compare its signature. Where the body ended right
// behind the last bytes, versitygw took them unseen, and a checksum that was to
// follow as absent. So for it such a body has no end but that chunk.
type Chunked struct {
	r      io.Reader
	left   int64 // what it may still have, in bytes: versitygw holds in memory what follows the chunks
	signed bool
	ended  bool // read to the end that HTTP gives it
	err    error
}

// GuardChunks puts itself before such a body; nil where it is none.
func GuardChunks(c fiber.Ctx) *Chunked {
	payload := c.Get("X-Amz-Content-Sha256")
	if !strings.HasPrefix(payload, anyChunks) {
		return nil
	}
	stream := c.Request().BodyStream()
	if stream == nil {
		stream = http.NoBody
	}
	size, _ := strconv.ParseInt(c.Get("X-Amz-Decoded-Content-Length"), 10, 64) // where it is no size, versitygw refuses it
	b := &Chunked{r: stream, left: maxChunked(size), signed: strings.HasPrefix(payload, signedChunks)}
	utils.ContextKeyBodyReader.Set(c, b)
	return b
}

// maxBody is what S3 takes in one request, in bytes.
const maxBody = 5 << 30

// maxChunked is how long a body with so many bytes in it may be: all its chunks but
// the last have at least 8 KiB, and 100 bytes more.
func maxChunked(size int64) int64 {
	size = min(max(size, 0), maxBody)
	return size + size/64 + 8<<10
}

// Read implements [io.Reader]. An error comes alone: versitygw forgets bytes that
// come with one.
func (b *Chunked) Read(p []byte) (int, error) {
	if b.err == nil && b.left == 0 {
		b.err = s3err.GetAPIError(s3err.ErrIncompleteBody)
	}
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	b.ended = errors.Is(err, io.EOF)
	if b.signed && (b.ended || errors.Is(err, io.ErrUnexpectedEOF)) { // versitygw takes the second for the first
		err = s3err.GetAPIError(s3err.ErrIncompleteBody)
	}
	if b.err = err; n > 0 {
		err = nil
	}
	return n, err
}

// Over reports whether nothing is left of a body that versitygw is done with, so
// that what comes next on the connection is a request. What ends it in HTTP may
// still be on its way.
func (b *Chunked) Over(conn *Conn) bool {
	if b == nil || conn.Conn == nil || conn.SetReadDeadline(time.Now().Add(time.Second)) != nil {
		return false
	}
	n, _ := b.Read(make([]byte, 1))
	return n == 0 && b.ended
}

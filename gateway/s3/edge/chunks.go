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
	anyChunks    = "STREAMING-"                         // prefix of every payload that is a body in S3's chunks
	signedChunks = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" // and of those with signed chunks
)

// Chunked is an upload's body in S3's chunks, between the client and versitygw, which extracts the object's bytes.
//
// A body with signed chunks ends with an empty chunk, and versitygw compares a chunk's signature only when the next one
// follows. If the body ended right after the last bytes, versitygw would accept them unverified, and treat a trailing
// checksum as absent. So Chunked lets such a body end only with the empty chunk.
type Chunked struct {
	r      io.Reader
	left   int64 // bytes that may still follow: versitygw buffers what follows the chunks
	signed bool
	ended  bool // read to the end of the HTTP body
	err    error
}

// GuardChunks wraps such a body; nil if the request has none.
func GuardChunks(c fiber.Ctx) *Chunked {
	payload := c.Get("X-Amz-Content-Sha256")
	if !strings.HasPrefix(payload, anyChunks) {
		return nil
	}
	stream := c.Request().BodyStream()
	if stream == nil {
		stream = http.NoBody
	}
	size, _ := strconv.ParseInt(c.Get("X-Amz-Decoded-Content-Length"), 10, 64) // versitygw refuses an invalid size
	b := &Chunked{r: stream, left: maxChunked(size), signed: strings.HasPrefix(payload, signedChunks)}
	utils.ContextKeyBodyReader.Set(c, b)
	return b
}

// maxBody is S3's limit for one request, in bytes.
const maxBody = 5 << 30

// maxChunked is the greatest length of a chunked body for size bytes: all its chunks but the last have at least 8 KiB,
// plus 100 bytes.
func maxChunked(size int64) int64 {
	size = min(max(size, 0), maxBody)
	return size + size/64 + 8<<10
}

// Read implements [io.Reader]. It never returns an error with bytes: versitygw drops such bytes.
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
	if b.signed && (b.ended || errors.Is(err, io.ErrUnexpectedEOF)) { // versitygw takes an unexpected EOF for an EOF
		err = s3err.GetAPIError(s3err.ErrIncompleteBody)
	}
	if b.err = err; n > 0 {
		err = nil
	}
	return n, err
}

// Over reports whether versitygw has consumed a body completely, so that the next bytes on the connection are a
// request. The end of the HTTP body may still be on its way.
func (b *Chunked) Over(conn *Conn) bool {
	if b == nil || conn.Conn == nil || conn.SetReadDeadline(time.Now().Add(conn.linger/2)) != nil {
		return false
	}
	n, _ := b.Read(make([]byte, 1))
	return n == 0 && b.ended
}

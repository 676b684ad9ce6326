package s3

import (
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
)

// A body whose chunks are signed ends with a chunk of no bytes, and only what comes
// behind a chunk makes the front compare its signature. Where the body ended right
// behind the last bytes, the front took them unseen, and a checksum that was to
// follow as absent. So for it such a body has no end but that chunk.

const signedChunks = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" // the begin of both kinds

// guardChunks sees to it that the front reads such a body through.
func guardChunks(c fiber.Ctx) {
	if !strings.HasPrefix(c.Get("X-Amz-Content-Sha256"), signedChunks) {
		return
	}
	stream := c.Request().BodyStream()
	if stream == nil {
		stream = http.NoBody
	}
	utils.ContextKeyBodyReader.Set(c, &endless{r: stream})
}

// endless fails where its reader ends.
type endless struct {
	r   io.Reader
	err error
}

// Read implements [io.Reader]. An error comes alone: the front forgets bytes that
// come with one.
func (e *endless) Read(p []byte) (int, error) {
	if e.err != nil {
		return 0, e.err
	}
	n, err := e.r.Read(p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // the front takes the second for the first
		err = s3err.GetAPIError(s3err.ErrIncompleteBody)
	}
	if e.err = err; n > 0 {
		err = nil
	}
	return n, err
}

package edge

import (
	"strconv"

	"github.com/valyala/fasthttp"
)

// fasthttp reads 8 KiB of a body, and answers Expect: 100-continue, before it asks
// anybody. A body that is announced as longer than any upload is therefore taken out of
// the request when its headers are there: it is neither asked for nor read, and the
// connection ends with the refusal.

// MaxUpload is how long an upload may be, in bytes, as in S3.
const MaxUpload = 5 << 30

// headerTooLarge is what was announced. Only this server sets it.
const headerTooLarge = "Fencegate-Too-Large"

// refuseTooLarge notes a body that is too large, and takes it out of the request.
func refuseTooLarge(h *fasthttp.RequestHeader) {
	h.Del(headerTooLarge)
	length := int64(h.ContentLength())
	excess := length > MaxUpload
	if text := h.Peek("X-Amz-Decoded-Content-Length"); len(text) > 0 {
		decoded, _ := strconv.ParseInt(string(text), 10, 64)            // what is no number is refused later
		excess = decoded > MaxUpload || length > MaxUpload+MaxUpload/16 // the signatures of its chunks
		length = max(length, decoded)
	}
	if !excess {
		return
	}
	h.Del("Expect")
	h.SetContentLength(0)
	h.Set(headerTooLarge, strconv.FormatInt(length, 10))
}

// TooLarge is the length of a body that was announced and is too large, or 0.
func TooLarge(h *fasthttp.RequestHeader) int64 {
	n, _ := strconv.ParseInt(string(h.Peek(headerTooLarge)), 10, 64)
	return n
}

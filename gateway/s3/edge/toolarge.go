package edge

import (
	"strconv"

	"github.com/valyala/fasthttp"
)

// fasthttp reads 8 KiB of a body, and answers Expect: 100-continue, before any handler runs. So a body that is
// announced as longer than any upload is removed from the request once its headers are read: the server neither asks
// for it nor reads it, and the connection ends with the refusal.

// MaxUpload is the greatest length of an upload, in bytes, as in S3.
const MaxUpload = 5 << 30

// headerTooLarge holds the announced length. Only this server sets it.
const headerTooLarge = "Fencegate-Too-Large"

// refuseTooLarge records a body that is too large, and removes it from the request.
func refuseTooLarge(h *fasthttp.RequestHeader) {
	h.Del(headerTooLarge)
	length := int64(h.ContentLength())
	excess := length > MaxUpload
	if text := h.Peek("X-Amz-Decoded-Content-Length"); len(text) > 0 {
		decoded, _ := strconv.ParseInt(string(text), 10, 64)            // an invalid number is refused later
		excess = decoded > MaxUpload || length > MaxUpload+MaxUpload/16 // room for the signatures of its chunks
		length = max(length, decoded)
	}
	if !excess {
		return
	}
	h.Del("Expect")
	h.SetContentLength(0)
	h.Set(headerTooLarge, strconv.FormatInt(length, 10))
}

// TooLarge returns the length of a body that was announced as too large, or 0.
func TooLarge(h *fasthttp.RequestHeader) int64 {
	n, _ := strconv.ParseInt(string(h.Peek(headerTooLarge)), 10, 64)
	return n
}

package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// form is how a body is declared in its signature.
type form string

const (
	unsignedPayload form = "UNSIGNED-PAYLOAD"
	chunkedTrailer  form = "STREAMING-UNSIGNED-PAYLOAD-TRAILER" // aws-chunked, with a trailing checksum
)

// chunk is the size of a body's chunks.
const chunk = 64 << 10

// putRaw sends one signed request, once, with the body's length declared.
func (h *s3Holding) putRaw(ctx context.Context, b *body, pause func(context.Context), pauses int, as form) error {
	if err := h.prepare(ctx); err != nil {
		return err
	}
	ctx, p := withPace(ctx, b.size, pause, pauses)
	defer p.end()
	at := h.at
	h.at = (h.at + 1) % len(h.clients)
	req, err := h.rawRequest(ctx, h.s.env.cfg.Gateways[at].S3, b, as)
	if err != nil {
		return h.failed(err)
	}
	res, err := h.s.http.Do(req)
	if err != nil {
		return h.scrub(s3Failure(err))
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusOK {
		return nil
	}
	var e struct{ Code, Message string }
	text, _ := io.ReadAll(io.LimitReader(res.Body, reserved))
	_ = xml.Unmarshal(text, &e) // other answers have no code
	return h.scrub(&failure{
		outcome: s3Outcome(res.StatusCode, e.Code, e.Message), code: e.Code,
		err: fmt.Errorf("%s: %s: %s", res.Status, e.Code, e.Message),
	})
}

func (h *s3Holding) rawRequest(ctx context.Context, endpoint string, b *body, as form) (*http.Request, error) {
	sent, length := io.Reader(b), b.size
	if as == chunkedTrailer {
		sent, length = chunked(b)
	}
	path := endpoint + "/" + h.s.env.cfg.Bucket + "/" + h.key
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, path, io.NopCloser(sent))
	if err != nil {
		return nil, err
	}
	req.ContentLength = length
	req.Header.Set("X-Amz-Content-Sha256", string(as))
	req.Header.Set("X-Amz-Meta-Op", b.op)
	if as == chunkedTrailer {
		req.Header.Set("Content-Encoding", "aws-chunked")
		req.Header.Set("X-Amz-Trailer", "x-amz-checksum-crc32")
		req.Header.Set("X-Amz-Decoded-Content-Length", strconv.FormatInt(b.size, 10))
	}
	creds := aws.Credentials{
		AccessKeyID: h.creds.AccessKeyID, SecretAccessKey: h.creds.SecretAccessKey, SessionToken: h.creds.SessionToken,
	}
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	return req, signer.SignHTTP(ctx, creds, req, string(as), "s3", h.creds.Region, time.Now())
}

// chunked returns the body as aws-chunked with a CRC-32 in its trailer, and the length.
func chunked(b *body) (io.Reader, int64) {
	sum := crc32.NewIEEE()
	_, _ = io.Copy(sum, bodyOf(b.op, int(b.size))) // neither fails
	var parts []io.Reader
	var length int64
	text := func(format string, args ...any) {
		t := fmt.Appendf(nil, format, args...)
		parts, length = append(parts, bytes.NewReader(t)), length+int64(len(t))
	}
	for left := b.size; left > 0; left -= chunk {
		n := min(left, chunk)
		text("%x\r\n", n)
		parts, length = append(parts, io.LimitReader(b, n)), length+n
		text("\r\n")
	}
	sent := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	text("0\r\nx-amz-checksum-crc32:%s\r\n\r\n", sent)
	return io.MultiReader(parts...), length
}

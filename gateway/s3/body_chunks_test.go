//go:build unix

package s3_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/testenv"
)

const signedChunks = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// chunkSigner signs the chunks of one upload.
type chunkSigner struct {
	key         []byte
	date, scope string
	previous    string // the previous signature
}

func signerOf(c credentials.Credentials, req *http.Request) *chunkSigner {
	s := &chunkSigner{key: []byte("AWS4" + c.SecretAccessKey), date: req.Header.Get("X-Amz-Date")}
	s.scope = s.date[:8] + "/us-east-1/s3/aws4_request"
	for part := range strings.SplitSeq(s.scope, "/") {
		s.key = mac(s.key, part)
	}
	_, s.previous, _ = strings.Cut(req.Header.Get("Authorization"), "Signature=")
	return s
}

func (s *chunkSigner) sign(algorithm, text string) string {
	s.previous = hex.EncodeToString(mac(s.key, strings.Join([]string{algorithm, s.date, s.scope, s.previous, text}, "\n")))
	return s.previous
}

// chunk returns the line before a chunk's bytes.
func (s *chunkSigner) chunk(data string) string {
	empty, sum := sha256.Sum256(nil), sha256.Sum256([]byte(data))
	return fmt.Sprintf("%x;chunk-signature=%s\r\n", len(data), s.sign("AWS4-HMAC-SHA256-PAYLOAD", fmt.Sprintf("%x\n%x", empty, sum)))
}

// chunked sends an upload whose body is built with a signer of its chunks.
func (w *world) chunked(data, trailer string, text func(*chunkSigner) string) (int, string) {
	w.t.Helper()
	r := w.putRaw(5, "", "")
	r.payload, r.header = signedChunks, map[string]string{"X-Amz-Decoded-Content-Length": strconv.Itoa(len(data))}
	if trailer != "" {
		r.payload += "-TRAILER"
		r.header["X-Amz-Trailer"] = trailer
	}
	req := w.request(r)
	wire := text(signerOf(r.creds, req))
	req.Body, req.ContentLength = io.NopCloser(body(wire)), int64(len(wire))
	res, err := httpClient(w.t).Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, readAll(w.t, res.Body)
}

// Chunk signatures are verified before anything is stored, wherever the body ends.
func TestChunksThatNobodySignedAreNotStored(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	forged := func(n int) string { return fmt.Sprintf("%x;chunk-signature=%s\r\n", n, strings.Repeat("0", 64)) }
	for _, size := range []int{5, 100_000} { // read whole, and streamed
		data := strings.Repeat("d", size)
		sum := crc32.ChecksumIEEE([]byte(data))
		crc := base64.StdEncoding.EncodeToString([]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
		trailed := func(sum string) func(*chunkSigner) string {
			return func(s *chunkSigner) string {
				all, line := s.chunk(data)+data+"\r\n"+s.chunk(""), "x-amz-checksum-crc32:"+sum
				signed := sha256.Sum256([]byte(line + "\n"))
				return all + line + "\r\nx-amz-trailer-signature:" + s.sign("AWS4-HMAC-SHA256-TRAILER", hex.EncodeToString(signed[:])) + "\r\n\r\n"
			}
		}
		const follows = "x-amz-checksum-crc32"
		for _, c := range []struct {
			name, trailer string
			make          func(*chunkSigner) string
			status        int
		}{
			{"signed", "", func(s *chunkSigner) string { return s.chunk(data) + data + "\r\n" + s.chunk("") + "\r\n" }, 200},
			{"signed, with a checksum", follows, trailed(crc), 200},
			{"another checksum", follows, trailed("AAAAAA=="), 400},
			{"forged", "", func(s *chunkSigner) string { return forged(size) + data + "\r\n" + s.chunk("") + "\r\n" }, 403},
			{"forged, and nothing behind", "", func(*chunkSigner) string { return forged(size) + data }, 400},
			{"forged, and longer than announced", "", func(*chunkSigner) string { return forged(size+1) + data }, 400},
			{"signed, and nothing behind", "", func(s *chunkSigner) string { return s.chunk(data) + data }, 400},
			{"no checksum", follows, func(s *chunkSigner) string { return s.chunk(data) + data }, 400},
			{"nothing", "", func(*chunkSigner) string { return "" }, 400},
			{"a negative size", "", func(*chunkSigner) string { return forged(-5) + data }, 400},
			{"a negative size later", "", func(s *chunkSigner) string { return s.chunk(data) + data + "\r\n" + forged(-5) + data }, 400},
		} {
			if status, text := w.chunked(data, c.trailer, c.make); status != c.status {
				t.Errorf("%d bytes, %s: got %d %.200s, want %d", size, c.name, status, text, c.status)
			}
			if c.status != http.StatusOK {
				continue
			}
			if got := get(t, w.root(), bucket, invoice); got != data {
				t.Errorf("%d bytes, %s: the object holds %d others", size, c.name, len(got))
			}
		}
	}
	if n := w.count("SELECT count(*) FROM objects.versions"); n != 4 {
		t.Errorf("%d versions are recorded, want 4", n)
	}
	testenv.Eventually(t, "what was refused is given up", func() bool { return w.pending() == 0 })
	w.reserveIsWhole()
}

// versitygw would store chunks with another kind of signature as the object itself.
func TestChunksSignedInAnotherWayAreNotImplemented(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	for _, payload := range []string{"STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER"} {
		r := w.putRaw(5, "", "5;chunk-signature=")
		r.payload = payload
		r.header = map[string]string{"X-Amz-Decoded-Content-Length": strconv.FormatInt(r.size, 10)}
		if res, text := w.send(r); res.StatusCode != http.StatusNotImplemented {
			t.Errorf("%s: got %d %s", payload, res.StatusCode, text)
		}
	}
	w.nothingLeft(0, 0)
}

// versitygw buffers what follows the chunks, so its size is limited.
func TestWhatFollowsTheChunksHasALimit(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	const announced = 1 << 30 // most of it never arrives: the answer does not wait for it
	r := w.putRaw(5, "", "")
	r.header, r.size = map[string]string{"X-Amz-Decoded-Content-Length": "4"}, announced
	request := w.headOf(r, "STREAMING-UNSIGNED-PAYLOAD-TRAILER") + "4\r\ndata\r\n0\r\n"
	if status, text := w.wire(request + strings.Repeat("x", 1<<20)); status != http.StatusBadRequest || !strings.Contains(text, "IncompleteBody") {
		t.Errorf("got %d %s", status, text)
	}
	for _, decoded := range []string{"-1", "9223372036854775807", "x"} {
		r.header = map[string]string{"X-Amz-Decoded-Content-Length": decoded}
		if status, text := w.wire(w.headOf(r, "STREAMING-UNSIGNED-PAYLOAD-TRAILER") + strings.Repeat("x", 1<<20)); status != http.StatusBadRequest && status != http.StatusLengthRequired {
			t.Errorf("%s: got %d %s", decoded, status, text)
		}
	}
	w.nothingLeft(0, 0)
	const size = 40_000 // in chunks of the smallest allowed size
	text := strings.Repeat("2000\r\n"+strings.Repeat("x", 8192)+"\r\n", size/8192) + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", size%8192, strings.Repeat("x", size%8192))
	r.payload, r.header = "STREAMING-UNSIGNED-PAYLOAD-TRAILER", map[string]string{"X-Amz-Decoded-Content-Length": strconv.Itoa(size)}
	r.body, r.size = body(text), int64(len(text))
	if res, text := w.send(r); res.StatusCode != http.StatusOK {
		t.Errorf("small chunks: got %d %s", res.StatusCode, text)
	}
	if got := get(t, w.root(), bucket, invoice); got != strings.Repeat("x", size) {
		t.Errorf("the object holds %d bytes", len(got))
	}
}

// versitygw ignores digests with a presigned URL, and does not decode chunks.
func TestAPresignedUploadIsWhatIsSent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	creds := w.issue("orders/1001", 5)
	for _, c := range []struct {
		payload string
		status  int
	}{
		{"STREAMING-UNSIGNED-PAYLOAD-TRAILER", 501}, {signedChunks, 501}, {strings.Repeat("0", 64), 501}, {"UNSIGNED-PAYLOAD", 200},
	} {
		req := w.request(raw{creds: creds, method: "PUT", path: "/orders/" + invoice + "?X-Amz-Expires=60"})
		req.Header = http.Header{"X-Amz-Content-Sha256": {c.payload}}
		signed, _, err := v4.NewSigner().PresignHTTP(t.Context(), aws.Credentials{AccessKeyID: creds.AccessKeyID, SecretAccessKey: creds.SecretAccessKey, SessionToken: creds.SessionToken},
			req, "UNSIGNED-PAYLOAD", "s3", "us-east-1", time.Now(), func(o *v4.SignerOptions) { o.DisableURIPathEscaping, o.DisableHeaderHoisting = true, true })
		if err != nil {
			t.Fatal(err)
		}
		if status, text := w.fetch("PUT", signed, "4\r\ndata\r\n0\r\n\r\n", "X-Amz-Content-Sha256", c.payload); status != c.status {
			t.Errorf("%s: got %d %s, want %d", c.payload, status, text, c.status)
		}
	}
	if got := get(t, w.root(), bucket, invoice); got != "4\r\ndata\r\n0\r\n\r\n" {
		t.Errorf("the object holds %q", got)
	}
	w.nothingLeft(1, 1)
}

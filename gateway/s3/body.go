package s3

import (
	"crypto/md5" //nolint:gosec // S3 defines the ETag as the MD5 of the bytes
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

// body is a request's body on its way into the blob store. It computes the digests and records whether an error was the
// client's.
type body struct {
	r       io.Reader
	md5     hash.Hash
	sum     *utils.HashReader          // for a checksum in the headers
	trailer middlewares.ChecksumReader // for a checksum in the trailer
	algo    string
	err     error
	count   int64 // bytes read
	ended   bool  // read to its end, where versitygw compares the digests
	inside  bool  // from our own store, not from the client
}

var _ objects.Body = (*body)(nil)

func newBody(in s3response.PutObjectInput) (*body, error) {
	b := &body{r: in.Body, md5: md5.New()} //nolint:gosec // see the import
	if t, ok := in.Body.(middlewares.ChecksumReader); ok && t.Algorithm() != "" {
		b.trailer, b.algo = t, strings.ToUpper(strings.Clone(t.Algorithm()))
		return b, b.supported()
	}
	expected := ""
	b.algo = strings.ToUpper(strings.Clone(string(in.ChecksumAlgorithm)))
	for algo, value := range map[string]*string{
		"CRC32": in.ChecksumCRC32, "CRC32C": in.ChecksumCRC32C, "CRC64NVME": in.ChecksumCRC64NVME, "SHA1": in.ChecksumSHA1, "SHA256": in.ChecksumSHA256,
		"SHA512": in.ChecksumSHA512, "MD5": in.ChecksumMD5, "XXHASH64": in.ChecksumXXHASH64, "XXHASH3": in.ChecksumXXHASH3, "XXHASH128": in.ChecksumXXHASH128,
	} {
		if value != nil && *value != "" {
			b.algo, expected = algo, strings.Clone(*value)
		}
	}
	if b.algo == "" {
		return b, nil
	}
	if err := b.supported(); err != nil {
		return nil, err
	}
	sum, err := utils.NewHashReader(in.Body, expected, utils.HashType(strings.ToLower(b.algo)))
	if err != nil {
		return nil, s3err.GetInvalidChecksumHeaderErr("x-amz-checksum-" + strings.ToLower(b.algo))
	}
	b.sum, b.r = sum, sum
	return b, nil
}

// storedBody returns bytes of our own store as a body.
func storedBody(r io.Reader) *body {
	return &body{r: r, md5: md5.New(), inside: true} //nolint:gosec // see the import
}

// compute computes the checksum even if the client sent none. A checksum of another algorithm is an error.
func (b *body) compute(algo string) error {
	switch {
	case algo == "" || algo == b.algo:
		return nil
	case b.algo != "":
		return s3err.GetChecksumTypeMismatchErr(types.ChecksumAlgorithm(algo), types.ChecksumAlgorithm(b.algo))
	}
	sum, err := utils.NewHashReader(b.r, "", utils.HashType(strings.ToLower(algo)))
	if err != nil {
		return s3err.GetInvalidChecksumHeaderErr("x-amz-checksum-" + strings.ToLower(algo))
	}
	b.sum, b.r, b.algo = sum, sum, algo
	return nil
}

func (b *body) supported() error {
	switch b.algo {
	case "CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256":
		return nil
	}
	return s3err.GetNotImplementedErr("x-amz-checksum-"+strings.ToLower(b.algo), "")
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	n, err := b.take(p)
	b.md5.Write(p[:n])
	b.count += int64(n)
	switch {
	case errors.Is(err, io.EOF):
		b.ended = true
	case err != nil:
		b.err = err
	}
	return n, err
}

// take reads from versitygw's readers, which panic on a chunk of negative size. A panic must not interrupt the storing
// of a body.
func (b *body) take(p []byte) (n int, err error) {
	defer func() {
		if recover() != nil {
			n, err = 0, s3err.GetAPIError(s3err.ErrIncompleteBody)
		}
	}()
	return b.r.Read(p)
}

// Finish implements [objects.Body].
func (b *body) Finish(size int64) error {
	var more [512]byte // the end of the chunks, which versitygw would parse byte by byte
	for b.count == size && !b.ended && b.err == nil {
		_, _ = b.Read(more[:]) // Read records the error
	}
	switch {
	case b.err != nil:
		return b.err
	case b.count != size:
		return fmt.Errorf("%w: got %d bytes, announced %d", blob.ErrSize, b.count, size)
	}
	return nil
}

// ReadWhole implements [objects.Body].
func (b *body) ReadWhole(data []byte) error {
	_, err := io.ReadFull(b, data)
	if err != nil && b.err == nil { // it ended early, which Finish reports
		err = nil
	}
	return errors.Join(err, b.Finish(int64(len(data))))
}

// ETag implements [objects.Body].
func (b *body) ETag() string { return hex.EncodeToString(b.md5.Sum(nil)) }

// Checksum implements [objects.Body].
func (b *body) Checksum() (algorithm, value string) { return b.algo, b.value() }

// Err implements [objects.Body]. An error of our own store is not the client's.
func (b *body) Err() error {
	if b.inside {
		return nil
	}
	return b.err
}

// value returns the verified checksum, once the body is read.
func (b *body) value() string {
	switch {
	case b.trailer != nil:
		return strings.Clone(b.trailer.Checksum())
	case b.sum != nil:
		return b.sum.Sum()
	}
	return ""
}

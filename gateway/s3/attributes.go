package s3

import (
	"encoding/base64"
	"mime"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	front "github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// attributesOf reads what a read returns besides the bytes, but for the checksum.
func attributesOf(in s3response.PutObjectInput, tags map[string]string) objects.Attributes {
	return objects.Attributes{
		ContentType: strings.Clone(aws.ToString(in.ContentType)), ContentEncoding: withoutChunking(strings.Clone(aws.ToString(in.ContentEncoding))), ContentDisposition: strings.Clone(aws.ToString(in.ContentDisposition)),
		ContentLanguage: strings.Clone(aws.ToString(in.ContentLanguage)), CacheControl: strings.Clone(aws.ToString(in.CacheControl)), Expires: strings.Clone(aws.ToString(in.Expires)),
		Metadata: metadataOf(in.Metadata), Tags: tags,
	}
}

// maxAttributes bounds what a version's attributes add to the headers of an answer, in bytes. Metadata in Latin-1 is
// longer as text than in its request.
const maxAttributes = 8 << 10

// checkAttributes refuses attributes that could not be returned unchanged.
func checkAttributes(a objects.Attributes) error {
	texts := []string{a.ContentType, a.ContentEncoding, a.ContentDisposition, a.ContentLanguage, a.CacheControl, a.Expires}
	size := 0
	for name, value := range a.Metadata {
		texts = append(texts, value)
		size += len(name)
		if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }) {
			return s3error.InvalidText("metadata's name")
		}
	}
	for _, s := range texts {
		size += len(s)
	}
	if size > maxAttributes {
		return s3err.GetMetadataTooLargeErr(size, maxAttributes)
	}
	if slices.ContainsFunc(texts, func(s string) bool { return strings.ContainsFunc(s, isControl) }) {
		return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "The metadata has a line break or another control character, which no header can give back."}
	}
	for name, value := range a.Tags {
		texts = append(texts, name, value)
	}
	if slices.ContainsFunc(texts, func(s string) bool { return !objects.ValidText(s) }) {
		return s3error.InvalidText("metadata")
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// withoutChunking drops "aws-chunked", which describes the transfer, not the object.
func withoutChunking(encoding string) string {
	var kept []string
	for part := range strings.SplitSeq(encoding, ",") {
		if part = strings.TrimSpace(part); part != "" && !strings.EqualFold(part, "aws-chunked") {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ", ")
}

// S3 stores metadata as text and returns it in headers, which hold ASCII: other text is sent as encoded words (RFC
// 2047). Headers may also hold raw bytes. They are read as UTF-8, which most clients send, or else as Latin-1, which
// boto3's HTTP library sends.

// metadataOf decodes metadata from headers.
func metadataOf(given map[string]string) map[string]string {
	if given == nil {
		return nil
	}
	read := make(map[string]string, len(given))
	for name, value := range given {
		read[strings.Clone(name)] = metadataText(value)
	}
	return read
}

func metadataText(value string) string {
	if strings.Contains(value, "=?") {
		if decoded, err := new(mime.WordDecoder).DecodeHeader(value); err == nil {
			value = decoded
		}
	}
	if utf8.ValidString(value) {
		return strings.Clone(value)
	}
	var text strings.Builder
	for i := range len(value) {
		text.WriteRune(rune(value[i]))
	}
	return text.String()
}

// metadataIn encodes metadata for headers.
func metadataIn(kept map[string]string) map[string]string {
	for _, value := range kept {
		if !isASCII(value) {
			return encodeMetadata(kept)
		}
	}
	return kept
}

func encodeMetadata(kept map[string]string) map[string]string {
	encoded := make(map[string]string, len(kept))
	for name, value := range kept {
		if !isASCII(value) {
			value = "=?UTF-8?B?" + base64.StdEncoding.EncodeToString([]byte(value)) + "?="
		}
		encoded[name] = value
	}
	return encoded
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf })
}

const maxTags = 10

// parseTags parses the header x-amz-tagging.
func parseTags(header *string) (map[string]string, error) {
	text := ""
	if header != nil {
		text = strings.Clone(*header)
	}
	tags, err := front.ParseObjectTags(text)
	if err == nil && len(tags) > maxTags {
		err = s3err.GetAPIError(s3err.ErrObjectTaggingLimited)
	}
	return tags, err
}

// checksums are the headers of a version's checksum; at most one is set.
type checksums struct {
	crc32, crc32c, crc64nvme, sha1, sha256 *string
	kind                                   types.ChecksumType
}

func checksumsOf(algorithm, value string) checksums {
	if value == "" {
		return checksums{}
	}
	c := checksums{kind: types.ChecksumTypeFullObject}
	if objects.IsComposite(value) {
		c.kind = types.ChecksumTypeComposite
	}
	switch algorithm {
	case "CRC32":
		c.crc32 = &value
	case "CRC32C":
		c.crc32c = &value
	case "CRC64NVME":
		c.crc64nvme = &value
	case "SHA1":
		c.sha1 = &value
	case "SHA256":
		c.sha256 = &value
	}
	return c
}

// optional returns nil for an empty text, which an answer then omits.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func quoted(etag string) string { return `"` + etag + `"` }

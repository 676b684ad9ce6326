package s3

import (
	"encoding/base64"
	"mime"
	"strings"
	"unicode/utf8"
)

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
			return encodedMetadata(kept)
		}
	}
	return kept
}

func encodedMetadata(kept map[string]string) map[string]string {
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

package main

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/md5" //nolint:gosec // ETags, Content-MD5 and PostgreSQL's older passwords are MD5
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// keys sign requests to the S3 port. The zero value signs none.
type keys struct{ name, access, secret, session string }

// sessionOf derives the credentials of a token from the master key, as every gateway with this key does.
func sessionOf(resource string, token uint64, expires time.Time) keys {
	master, _ := hex.DecodeString(masterKey)
	payload := append([]byte{1, byte(len(masterKeyID))}, masterKeyID...)
	payload = binary.BigEndian.AppendUint64(payload, uint64(expires.Unix()))
	payload = binary.BigEndian.AppendUint64(payload, token)
	payload = append(payload, resource...)
	text := base64.RawURLEncoding.EncodeToString(append(payload, hmacSum(derived(master, "fencegate s3 session token"), payload)...))
	sum := sha256.Sum256([]byte(text))
	access := "ASIA" + base32.StdEncoding.EncodeToString(sum[:])[:16]
	secret := base64.RawURLEncoding.EncodeToString(hmacSum(derived(master, "fencegate s3 secret access key"), []byte(access+"\x00"+text)))
	return keys{name: "credentials of " + resource, access: access, secret: secret, session: text}
}

func derived(master []byte, label string) []byte {
	key, _ := hkdf.Key(sha256.New, master, nil, label, sha256.Size) // never fails with this length
	return key
}

func hmacSum(key, data []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(data)
	return h.Sum(nil)
}

const (
	region          = "us-east-1"
	unsignedPayload = "UNSIGNED-PAYLOAD"
)

func (k keys) credentials() aws.Credentials {
	return aws.Credentials{AccessKeyID: k.access, SecretAccessKey: k.secret, SessionToken: k.session}
}

func plainPath(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }

// signingKey is the day's signing key of Signature Version 4.
func (k keys) signingKey(at time.Time) []byte {
	key := []byte("AWS4" + k.secret)
	for _, part := range []string{at.UTC().Format("20060102"), region, "s3", "aws4_request"} {
		key = hmacSum(key, []byte(part))
	}
	return key
}

// chunked is a body in chunks of Signature Version 4. The seed is
// the headers' signature; the trailer is "name:value", or empty.
func (k keys) chunked(kind, body, trailer, seed string, at time.Time) string {
	scope := strings.Join([]string{at.UTC().Format("20060102"), region, "s3", "aws4_request"}, "/")
	date, key, empty := at.UTC().Format("20060102T150405Z"), k.signingKey(at), sha256Of("")
	var out strings.Builder
	for _, data := range []string{body, ""} {
		out.WriteString(strconv.FormatInt(int64(len(data)), 16))
		if kind != "STREAMING-UNSIGNED-PAYLOAD-TRAILER" {
			seed = hex.EncodeToString(hmacSum(key, []byte(strings.Join([]string{"AWS4-HMAC-SHA256-PAYLOAD", date, scope, seed, empty, sha256Of(data)}, "\n"))))
			out.WriteString(";chunk-signature=" + seed)
		}
		out.WriteString("\r\n" + data)
		if data != "" {
			out.WriteString("\r\n")
		}
	}
	switch {
	case trailer == "":
		return out.String() + "\r\n"
	case kind == "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER":
		seed = hex.EncodeToString(hmacSum(key, []byte(strings.Join([]string{"AWS4-HMAC-SHA256-TRAILER", date, scope, seed, sha256Of(trailer + "\n")}, "\n"))))
		return out.String() + trailer + "\r\nx-amz-trailer-signature:" + seed + "\r\n\r\n"
	}
	return out.String() + trailer + "\r\n\r\n"
}

// md5Of is a text's MD5 in the form of an ETag.
func md5Of(s string) string {
	sum := md5.Sum([]byte(s)) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}

// digestOf is a text's MD5 in the form of Content-MD5.
func digestOf(s string) string {
	sum := md5.Sum([]byte(s)) //nolint:gosec // as above
	return base64.StdEncoding.EncodeToString(sum[:])
}

func sha256Of(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

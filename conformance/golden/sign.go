package main

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// principal signs requests to the S3 port. The zero value signs none.
type principal struct{ name, access, secret, session string }

var (
	root      = principal{name: "root", access: rootAccess, secret: rootSecret}
	anonymous = principal{name: "anonymous"}
)

// forged is the principal with another secret.
func (p principal) forged() principal {
	p.name, p.secret = p.name+", forged", p.secret+"x"
	return p
}

// sessionOf derives the credentials of a token from the master key, as every gateway with this key does.
func sessionOf(resource string, token uint64, expires time.Time) principal {
	master, _ := hex.DecodeString(masterKey)
	payload := append([]byte{1, byte(len(masterKeyID))}, masterKeyID...)
	payload = binary.BigEndian.AppendUint64(payload, uint64(expires.Unix()))
	payload = binary.BigEndian.AppendUint64(payload, token)
	payload = append(payload, resource...)
	text := base64.RawURLEncoding.EncodeToString(append(payload, hmacSum(derived(master, "fencegate s3 session token"), payload)...))
	sum := sha256.Sum256([]byte(text))
	access := "ASIA" + base32.StdEncoding.EncodeToString(sum[:])[:16]
	secret := base64.RawURLEncoding.EncodeToString(hmacSum(derived(master, "fencegate s3 secret access key"), []byte(access+"\x00"+text)))
	return principal{name: "credentials of " + resource, access: access, secret: secret, session: text}
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

func (p principal) credentials() aws.Credentials {
	return aws.Credentials{AccessKeyID: p.access, SecretAccessKey: p.secret, SessionToken: p.session}
}

func (p principal) sign(ctx context.Context, req *http.Request, payload string, at time.Time) error {
	return v4.NewSigner().SignHTTP(ctx, p.credentials(), req, payload, "s3", region, at, func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
}

func (p principal) presign(ctx context.Context, req *http.Request, at time.Time) (url string, err error) {
	url, _, err = v4.NewSigner().PresignHTTP(ctx, p.credentials(), req, unsignedPayload, "s3", region, at, func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	return url, err
}

// signingKey is the day's signing key of Signature Version 4.
func (p principal) signingKey(at time.Time) []byte {
	key := []byte("AWS4" + p.secret)
	for _, part := range []string{at.UTC().Format("20060102"), region, "s3", "aws4_request"} {
		key = hmacSum(key, []byte(part))
	}
	return key
}

const (
	signedChunks        = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	signedChunksTrailer = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
	plainChunksTrailer  = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

// chunked is a body in chunks of Signature Version 4. The seed is
// the headers' signature; the trailer is "name:value", or empty.
func (p principal) chunked(kind, body, trailer, seed string, at time.Time) string {
	scope := strings.Join([]string{at.UTC().Format("20060102"), region, "s3", "aws4_request"}, "/")
	date, key, empty := at.UTC().Format("20060102T150405Z"), p.signingKey(at), hexSum("")
	var out strings.Builder
	for _, data := range []string{body, ""} {
		out.WriteString(hexOf(len(data)))
		if kind != plainChunksTrailer {
			seed = hex.EncodeToString(hmacSum(key, []byte(strings.Join([]string{"AWS4-HMAC-SHA256-PAYLOAD", date, scope, seed, empty, hexSum(data)}, "\n"))))
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
	case kind == signedChunksTrailer:
		seed = hex.EncodeToString(hmacSum(key, []byte(strings.Join([]string{"AWS4-HMAC-SHA256-TRAILER", date, scope, seed, hexSum(trailer + "\n")}, "\n"))))
		return out.String() + trailer + "\r\nx-amz-trailer-signature:" + seed + "\r\n\r\n"
	}
	return out.String() + trailer + "\r\n\r\n"
}

func hexOf(n int) string {
	text := hex.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(n)))
	return strings.TrimLeft(text[:15], "0") + text[15:]
}

func hexSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func sorted(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

package edge

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// These checks refuse what is not implemented, before versitygw takes it for something else: it selects operations by
// the parameters that it knows, so DELETE /bucket?metadataTable would delete the bucket.

// presigned are the parameters of a presigned URL, which any operation may have.
var presigned = Words(strings.ToLower("x-id Expires AWSAccessKeyId Signature X-Amz-Algorithm X-Amz-Credential X-Amz-Date X-Amz-Expires X-Amz-SignedHeaders " +
	"X-Amz-Signature X-Amz-Security-Token X-Amz-Content-Sha256 X-Amz-User-Agent"))

// Headers of this gateway, and of SDKs.
const (
	// HeaderToken presents a grant, as an alternative to a lease's credentials:
	// "34.<seal>", signed by the root credentials.
	HeaderToken = "Fencing-Token"
	// HeaderStage asks to stage an upload. In the answer it names the stage.
	HeaderStage = "Fencing-Stage"
	// HeaderInvocation is the same in each attempt of a request.
	HeaderInvocation = "amz-sdk-invocation-id"
	// HeaderAttempt counts the attempts of a request: "attempt=1; max=3".
	HeaderAttempt = "amz-sdk-request"
)

// Headers for the expectations of a deletion, besides If-Match.
const (
	HeaderExpectedSize = "X-Amz-If-Match-Size"
	HeaderExpectedTime = "X-Amz-If-Match-Last-Modified-Time"
)

// InvalidToken is the error for an invalid [HeaderToken].
func InvalidToken(reason string) s3error.Error {
	return s3error.Error{Code: "InvalidFencingToken", Status: http.StatusForbidden, Message: "The header " + HeaderToken + " " + reason + ". Nothing was changed."}
}

// Headers that set ACLs.
const (
	HeaderACL   = "X-Amz-Acl"
	HeaderGrant = "X-Amz-Grant-" // prefix of several
)

// writeConditions are the headers of conditions on a write, a deletion or a copy's source.
var writeConditions = Words("If-Match If-None-Match X-Amz-Copy-Source-If-Match X-Amz-Copy-Source-If-None-Match X-Amz-Copy-Source-If-Modified-Since " +
	"X-Amz-Copy-Source-If-Unmodified-Since " + HeaderExpectedSize + " " + HeaderExpectedTime)

// unsupported are the prefixes of headers that ask for what is not implemented.
var unsupported = []string{HeaderGrant, "X-Amz-Object-Lock-", "X-Amz-Server-Side-Encryption", "X-Amz-Copy-Source-Server-Side-Encryption"}

// Words returns the words of a text, as a set.
func Words(words string) map[string]bool {
	s := map[string]bool{}
	for word := range strings.FieldsSeq(words) {
		s[word] = true
	}
	return s
}

// WritesProperties reports whether a PUT writes not an object but something about one, possibly of an older version.
func WritesProperties(c fiber.Ctx) bool {
	return slices.ContainsFunc([]string{"tagging", "retention", "legal-hold", "acl"}, c.Request().URI().QueryArgs().Has)
}

// Harmless reports whether any operation may have the parameter: those of a presigned URL, and the checksums that SDKs
// put into one.
func Harmless(name string) bool {
	name = strings.ToLower(name)
	return presigned[name] || strings.HasPrefix(name, "x-amz-checksum-") || name == "x-amz-sdk-checksum-algorithm"
}

// CheckHeaders refuses headers that ask for something not implemented, for any operation.
func CheckHeaders(c fiber.Ctx, path, owner string) s3err.S3Error {
	_, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	acl, reads := setsACL(c), c.Method() == fiber.MethodGet || c.Method() == fiber.MethodHead
	for name, value := range c.Request().Header.All() {
		header := string(name)
		switch {
		case !reads && writeConditions[header] && (len(bytes.Trim(value, `" `)) == 0 || len(c.Request().Header.PeekAll(header)) > 1): // versitygw uses the first, ignores an empty one
			return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "The condition " + header + " has no value, or is repeated."}
		case !strings.HasPrefix(header, "X-Amz-"):
		case header == "X-Amz-Expected-Bucket-Owner" || header == "X-Amz-Source-Expected-Bucket-Owner":
			if string(value) != owner {
				return s3error.Error{Code: "AccessDenied", Status: http.StatusForbidden, Message: "All buckets here belong to the root access key, which is not the owner that " + header + " names."}
			}
		case acl && (header == HeaderACL || strings.HasPrefix(header, HeaderGrant)): // isPrivate checks it
		case asksForMore(header, string(value), key != ""), wouldIgnore(c, header):
			return s3err.GetNotImplementedErr(header, "")
		}
	}
	return nil
}

// wouldIgnore reports whether the operation would ignore a header: a condition, a range or a body digest.
func wouldIgnore(c fiber.Ctx, header string) bool {
	switch header {
	case HeaderExpectedSize, HeaderExpectedTime:
		return c.Method() != fiber.MethodDelete
	case "X-Amz-If-Match-Initiated-Time":
		return true
	case "X-Amz-Content-Sha256": // versitygw ignores it with a presigned URL
		return c.Get(header) != "UNSIGNED-PAYLOAD" && utils.IsPresignedURLAuth(c) && (c.Method() == fiber.MethodPut || c.Method() == fiber.MethodPost)
	case "X-Amz-Copy-Source-Range":
		return !c.Request().URI().QueryArgs().Has("partNumber")
	case "X-Amz-Copy-Source-If-Modified-Since", "X-Amz-Copy-Source-If-Unmodified-Since":
		_, err := time.Parse(time.RFC1123, c.Get(header))
		if err != nil {
			_, err = time.Parse(time.RFC3339, c.Get(header))
		}
		return err != nil // versitygw accepts no other form
	}
	return false
}

// setsACL reports whether a request sets an ACL and does nothing else.
func setsACL(c fiber.Ctx) bool {
	query := c.Request().URI().QueryArgs()
	for name := range query.All() {
		if n := string(name); n != "acl" && n != "versionId" && !Harmless(n) {
			return false
		}
	}
	return c.Method() == fiber.MethodPut && query.Has("acl")
}

// asksForMore reports whether a header asks for more than the default.
func asksForMore(header, value string, ofObject bool) bool {
	switch header {
	case HeaderACL:
		return value != "private" && (value != "bucket-owner-full-control" || !ofObject)
	case "X-Amz-Storage-Class":
		return value != "STANDARD"
	case "X-Amz-Object-Ownership":
		return value != "BucketOwnerEnforced"
	case "X-Amz-Content-Sha256": // versitygw would store the chunks with their signatures
		return strings.HasPrefix(value, "STREAMING-AWS4-ECDSA-")
	case "X-Amz-Bucket-Object-Lock-Enabled":
		return !strings.EqualFold(value, "false")
	case "X-Amz-Website-Redirect-Location", "X-Amz-Write-Offset-Bytes", "X-Amz-Rename-Source":
		return true
	}
	return slices.ContainsFunc(unsupported, func(prefix string) bool { return strings.HasPrefix(header, prefix) })
}

package edge

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"

	"github.com/gofiber/fiber/v3"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// ValidDomain reports whether a domain is a valid host name, so that a Host either names a bucket or does not.
func ValidDomain(domain string) bool {
	for i := range len(domain) {
		c := domain[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return false
		}
	}
	return !strings.HasPrefix(domain, ".") && !strings.HasSuffix(domain, ".")
}

// HostBucket returns the bucket that a request's host names; "" if its path names it. It refuses hosts that versitygw
// would parse differently, or that are not the signed one: a request line may name a host, too.
func HostBucket(c fiber.Ctx, domain string) (string, *s3error.Error) {
	uri, header := c.Request().URI().Host(), c.Request().Header.Host()
	if !bytes.EqualFold(uri, header) {
		return "", &s3error.Error{Code: "InvalidURI", Status: http.StatusBadRequest, Message: "The request line and the header Host name different hosts."}
	}
	if domain == "" {
		return "", nil
	}
	host := strings.ToLower(string(header))
	if colon := strings.LastIndexByte(host, ':'); colon >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:colon]
	}
	bucket, rest, found := strings.Cut(host, "."+domain)
	switch {
	case !found || bucket == "":
		return "", nil
	case rest != "":
		return "", &s3error.Error{Code: "InvalidURI", Status: http.StatusBadRequest, Message: "The header Host is neither an address of this server nor BUCKET." + domain + "."}
	}
	return bucket, nil
}

// PathIn returns the path with the bucket, decoded as versitygw will see it: versitygw decodes before it splits bucket
// and key.
func PathIn(c fiber.Ctx, bucket string) (string, error) {
	path, err := url.PathUnescape(c.Path())
	if bucket != "" {
		path = "/" + bucket + path
	}
	return strings.Clone(path), err
}

package edge

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"

	"github.com/gofiber/fiber/v3"

	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// ValidDomain: of a host name, so that a Host is of a bucket or it is not.
func ValidDomain(domain string) bool {
	for i := range len(domain) {
		c := domain[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return false
		}
	}
	return !strings.HasPrefix(domain, ".") && !strings.HasSuffix(domain, ".")
}

// HostBucket is the bucket that a request names by its host, "" where its path
// does. It refuses hosts that versitygw would read in another way, or that are
// not the one that was signed: a request line may name one, too.
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

// PathIn is the path with the bucket in it, decoded as versitygw will see it: it
// decodes before it looks for a bucket and a key.
func PathIn(c fiber.Ctx, bucket string) (string, error) {
	path, err := url.PathUnescape(c.Path())
	if bucket != "" {
		path = "/" + bucket + path
	}
	return strings.Clone(path), err
}

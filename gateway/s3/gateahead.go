package s3

import (
	"net/url"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/fencegate/fencegate/gateway/objects"
)

// lookAhead begins the look-up of a read, if this is one, and reports whether it did.
func (g *gate) lookAhead(c fiber.Ctx, hostBucket string) bool {
	req := c.Request()
	method := c.Method()
	if !g.reader.LooksAhead() || method != fiber.MethodGet && method != fiber.MethodHead || req.Header.ContentLength() > 0 ||
		!plainQuery(req.URI().QueryString()) || len(req.Header.Peek(fiber.HeaderOrigin)) > 0 {
		return false
	}
	path, err := url.PathUnescape(string(req.URI().PathOriginal()))
	if err != nil {
		return false
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if hostBucket != "" {
		bucket, key = hostBucket, strings.TrimPrefix(path, "/")
	}
	if bucket == "" || key == "" || !objects.ValidText(bucket) || !g.knows(c) {
		return false
	}
	c.RequestCtx().SetUserValue(localAhead, g.reader.Begin(bucket, key))
	return true
}

// plainQuery: none, or what SDKs add to tell operations apart.
func plainQuery(query []byte) bool {
	return len(query) == 0 || string(query) == "x-id=GetObject" || string(query) == "x-id=HeadObject"
}

// knows reports whether the credentials that a request names are known here.
// Whether it is signed with them is not looked at.
func (g *gate) knows(c fiber.Ctx) bool {
	_, scope, found := strings.Cut(c.Get(fiber.HeaderAuthorization), "Credential=")
	access, _, named := strings.Cut(scope, "/")
	if !found || !named {
		return false
	}
	if access == g.cfg.RootAccessKey {
		return true
	}
	token := c.Get("X-Amz-Security-Token")
	if token == "" {
		return false
	}
	_, err := g.cfg.Keys.Verify(access, token, time.Now())
	return err == nil
}

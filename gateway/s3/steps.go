package s3

import (
	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3api/controllers"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3err"
)

// operation does what a route is for.
type operation func(*port, fiber.Ctx) (*controllers.Response, error)

// versity is an operation of versitygw's.
func versity(do func(ctl, fiber.Ctx) (*controllers.Response, error)) operation {
	return func(p *port, c fiber.Ctx) (*controllers.Response, error) { return do(p.ctl, c) }
}

// fails is no operation, but an error.
func fails(err error) operation {
	return func(*port, fiber.Ctx) (*controllers.Response, error) { return &controllers.Response{}, err }
}

func refuseCopySource(_ *port, c fiber.Ctx) (*controllers.Response, error) {
	return &controllers.Response{}, s3err.GetInvalidArgumentErr(s3err.InvalidArgCopySource, c.Get(headerCopySource))
}

// nothing answers 200 and has no effect.
func nothing(*port, fiber.Ctx) (*controllers.Response, error) { return &controllers.Response{}, nil }

// steps say in what a route differs before its operation. Without any, the request must be signed, its body's
// checksum is that of the header X-Amz-Content-Sha256, and the bucket's CORS rules apply.
type steps uint16

const (
	checked     steps = 1 << iota // the body's other checksums hold, if there are any
	needsBody                     // checked, and the body is not empty
	needsSum                      // checked, and there is a checksum
	streamed                      // the operation reads the body as it comes
	form                          // the body is a browser's form, which is signed itself
	sumOptional                   // without X-Amz-Content-Sha256, too
	anyRegion                     // signed for this region, or for the default one
	corsFirst                     // CORS rules apply to refusals, too
	noCORS
	noACL     // the bucket may be missing, or is none
	unnamed   // there is no name to look at
	anonymous // by anybody: CORS preflight
	open      // by anybody, and none of the above
)

func (s steps) has(one steps) bool { return s&one != 0 }

// handlers are versitygw's middlewares for a route, in its order.
func (p *port) handlers(r route) []fiber.Handler {
	if r.steps.has(open) {
		return nil
	}
	var all []fiber.Handler
	add := func(when bool, h fiber.Handler) {
		if when {
			all = append(all, h)
		}
	}
	s, streams := r.steps, r.steps.has(streamed)
	signed := !s.has(anonymous)
	cors := signed && !s.has(noCORS)
	add(!s.has(unnamed), middlewares.BucketObjectNameValidator())
	add(s.has(form), middlewares.AuthorizePostObject(p.root, p.iam, p.region))
	add(cors && s.has(corsFirst), p.cors)
	// No bucket is public, so the permission that would be needed decides nothing.
	add(signed, middlewares.AuthorizePublicBucketAccess(p.backend, r.action, auth.DeleteBucketAction, auth.PermissionWrite, p.region, streams))
	add(signed && !s.has(form), middlewares.VerifyPresignedV4Signature(p.root, p.iam, p.region, streams))
	add(signed && !s.has(form), middlewares.VerifyV4Signature(p.root, p.iam, p.region, streams, !s.has(sumOptional), s.has(anyRegion)))
	add(s.has(checked|needsBody|needsSum|streamed), middlewares.VerifyChecksums(streams, s.has(needsBody), s.has(needsSum)))
	add(cors && !s.has(corsFirst), p.cors)
	add(!s.has(noACL), middlewares.ParseAcl(p.backend))
	return all
}

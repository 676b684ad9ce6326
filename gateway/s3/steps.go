package s3

import (
	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3api/controllers"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3err"
)

// versity wraps an operation of versitygw.
func versity(do func(ctl, fiber.Ctx) (*controllers.Response, error)) operation {
	return func(p *port, c fiber.Ctx) (*controllers.Response, error) { return do(p.ctl, c) }
}

// fails is an operation that returns err.
func fails(err error) operation {
	return func(*port, fiber.Ctx) (*controllers.Response, error) { return &controllers.Response{}, err }
}

func refuseCopySource(_ *port, c fiber.Ctx) (*controllers.Response, error) {
	return &controllers.Response{}, s3err.GetInvalidArgumentErr(s3err.InvalidArgCopySource, c.Get(headerCopySource))
}

// nothing answers 200 and has no effect.
func nothing(*port, fiber.Ctx) (*controllers.Response, error) { return &controllers.Response{}, nil }

// handlers returns versitygw's middlewares for a route, in versitygw's order.
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
	add(cors && s.has(corsFirst), p.cors)
	// No bucket is public, so this permission decides nothing.
	add(signed, middlewares.AuthorizePublicBucketAccess(p.backend, r.action, auth.DeleteBucketAction, auth.PermissionWrite, p.region, streams))
	add(signed, middlewares.VerifyPresignedV4Signature(p.root, p.iam, p.region, streams))
	add(signed, middlewares.VerifyV4Signature(p.root, p.iam, p.region, streams, !s.has(sumOptional), s.has(anyRegion)))
	add(signed, p.within(r))
	add(s.has(checked|needsBody|needsSum|streamed), middlewares.VerifyChecksums(streams, s.has(needsBody), s.has(needsSum)))
	add(cors && !s.has(corsFirst), p.cors)
	add(!s.has(noACL), middlewares.ParseAcl(p.backend))
	return all
}

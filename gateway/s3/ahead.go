package s3

import (
	"context"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"

	"github.com/fencegate/fencegate/gateway/objects"
)

// The look-up of a plain read begins before the front verifies the signature, so
// that PostgreSQL works meanwhile. Its answer is used only after that, by the
// operation. Whoever makes PostgreSQL work like this names credentials that are
// known here, and a request's limits count for it, too; what he learns without a
// signature is nothing. Before a read from a page of another origin the front asks
// PostgreSQL for the bucket's rules: the look-up would hold a connection meanwhile,
// and wait for itself where there is only one.

// localAhead holds the look-up on its way to the operation.
const localAhead = "fencegate-ahead"

// takeAhead is the look-up that began ahead of an operation, once; nil where
// there is none, or it is of another key.
func takeAhead(ctx context.Context, bucket, key string) *objects.Lookup {
	rc, ok := ctx.(*fasthttp.RequestCtx)
	if !ok {
		return nil
	}
	l, ok := rc.UserValue(localAhead).(*objects.Lookup)
	if !ok || !l.IsOf(bucket, key) {
		return nil
	}
	rc.RemoveUserValue(localAhead)
	return l
}

// leaveAhead gives up a look-up that the operation did not take.
func leaveAhead(c fiber.Ctx) {
	if l, ok := c.RequestCtx().UserValue(localAhead).(*objects.Lookup); ok {
		c.RequestCtx().RemoveUserValue(localAhead)
		l.Leave()
	}
}

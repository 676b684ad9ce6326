package s3

import (
	"errors"
	"fmt"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/controllers"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/s3/edge"
)

// headerSize bounds a request line with its headers, in bytes.
const headerSize = 8 << 10

// port is the S3 port's HTTP application: versitygw's middlewares and operations, in our order and on our routes.
type port struct {
	ctl

	backend  *backend
	iam      iam
	root     middlewares.RootUserConfig
	region   string
	services controllers.Services
	cors     fiber.Handler

	routes     []fiber.Handler // by the routes' ids
	notAllowed fiber.Handler
}

func newApp(cfg config, be *backend, g *gate) *fiber.App {
	p := &port{
		backend: be, iam: iam{keys: cfg.Keys}, region: cfg.Region,
		root:     middlewares.RootUserConfig{Access: cfg.RootAccessKey, Secret: cfg.RootSecretKey},
		services: controllers.Services{MetricsManager: operations{}},
		cors:     middlewares.ApplyBucketCORS(be, middlewares.BucketFromPath, ""),
	}
	p.ctl = controllers.New(be, p.iam, nil, nil, operations{}, false, false, cfg.Domain, 0)
	p.serve()
	app := fiber.New(fiber.Config{
		StreamRequestBody: true,
		ReadBufferSize:    headerSize,
		Concurrency:       cfg.MaxConnections + edge.Refusers + 1, // the listener has the limit
		ErrorHandler:      g.failed,
	})
	app.Use("*", g.rescue, middlewares.DrainRequestBody(), middlewares.RequestIDs(), g.handle,
		middlewares.SetDefaultValues(p.root, cfg.Region), controllers.WrapMiddleware(middlewares.DecodeURL, nil, operations{}))
	if cfg.Domain != "" {
		app.Use("*", middlewares.HostStyleParser(cfg.Domain))
	}
	app.All("/:bucket/*", p.dispatch) // versitygw's operations read the parameter bucket
	app.All("*", p.dispatch)
	return app
}

// rescue answers where one of the steps around the gate panics.
func (g *gate) rescue(c fiber.Ctx) (err error) {
	defer func() {
		if r := recover(); r != nil {
			g.cfg.Logger.Error("s3: panic", "method", c.Method(), "panic", fmt.Sprint(r))
			err = answer(c, s3err.GetAPIError(s3err.ErrInternalError))
		}
	}()
	return c.Next()
}

// failed answers errors that reached nobody before. The text of one may repeat what the client sent.
func (g *gate) failed(c fiber.Ctx, err error) error {
	code := 0
	if e, ok := errors.AsType[*fiber.Error](err); ok {
		code = e.Code
	}
	g.cfg.Logger.Error("s3: failed before the gate", "method", c.Method(), "code", code)
	return answer(c, s3err.GetAPIError(s3err.ErrInternalError))
}

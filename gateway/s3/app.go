package s3

import (
	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/controllers"
	"github.com/versity/versitygw/s3api/middlewares"

	"github.com/fencegate/fencegate/gateway/s3/edge"
)

// headerSize bounds the request line and headers, in bytes.
const headerSize = 8 << 10

func newApp(cfg config, be *backend, g *gate) *fiber.App {
	p := &port{
		backend: be, iam: iam{keys: cfg.Keys, again: cfg.UploadTimeout}, region: cfg.Region,
		root:     middlewares.RootUserConfig{Access: cfg.RootAccessKey, Secret: cfg.RootSecretKey},
		services: controllers.Services{MetricsManager: operations{}},
		cors:     middlewares.ApplyBucketCORS(be, middlewares.BucketFromPath, ""),
	}
	p.ctl = controllers.New(be, p.iam, nil, nil, operations{}, false, false, cfg.Domain, 0)
	p.serve()
	app := fiber.New(fiber.Config{
		StreamRequestBody: true,
		ReadBufferSize:    headerSize,
		Concurrency:       cfg.MaxConnections + edge.Refusers + 1, // the listener enforces the limit
		ErrorHandler:      g.failed,
	})
	app.Use("*", g.rescue, middlewares.DrainRequestBody(), middlewares.RequestIDs(), g.handle,
		middlewares.SetDefaultValues(p.root, cfg.Region), controllers.WrapMiddleware(middlewares.DecodeURL, nil, operations{}))
	if cfg.Domain != "" {
		app.Use("*", middlewares.HostStyleParser(cfg.Domain))
	}
	app.All("/:bucket/*", p.dispatch) // versitygw's operations read the bucket parameter
	app.All("*", p.dispatch)
	return app
}

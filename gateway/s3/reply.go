package s3

import (
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
)

// Errors of the port as HTTP answers.

// refuse answers before the body is read. The body is never read.
func refuse(c fiber.Ctx, e s3err.S3Error) error {
	c.Response().Header.SetConnectionClose()
	return answer(c, e)
}

func answer(c fiber.Ctx, e s3err.S3Error) error {
	requestID, hostID := utils.EnsureRequestIDs(c)
	c.Locals(localCode, e.BaseError().Code)
	c.Response().Header.SetContentType(fiber.MIMEApplicationXML)
	if e.StatusCode() == http.StatusServiceUnavailable {
		c.Set(fiber.HeaderRetryAfter, retryAfter)
	}
	return c.Status(e.StatusCode()).Send(e.XMLBody(requestID, hostID))
}

// retryAfter is the Retry-After of a 503, in seconds. Most SDKs have a pause of their own.
const retryAfter = "1"

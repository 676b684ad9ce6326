package s3

import (
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/metrics"
	"github.com/versity/versitygw/s3err"
)

// Metrics is told what happens. Its methods are called while clients wait, so they
// are quick; they are safe for concurrent use.
type Metrics interface {
	// Answered: a request's answer was ready, so long after its headers had come; an
	// upload's was committed by then, and the bytes of an object that is read follow.
	// The operation is S3's name of it, [OperationNone] where the request was not of
	// any. The code is S3's, "" for success. There are about a hundred of each:
	// clients can't invent any.
	Answered(operation string, status int, code string, took time.Duration)
	// Committed: the transaction that decides an upload has ended, well or not, so
	// long after it was begun.
	Committed(took time.Duration)
}

// OperationNone stands for requests that did not get as far as an operation.
const OperationNone = "none"

// noMetrics is the [Metrics] of who wants none.
type noMetrics struct{}

var _ Metrics = noMetrics{}

func (noMetrics) Answered(string, int, string, time.Duration) {}
func (noMetrics) Committed(time.Duration)                     {}

// operations learns from versitygw which operation a request is, and what came
// of it; the gate tells.
type operations struct{}

var _ metrics.Manager = operations{}

// Keys of what a request was found to be.
const (
	localOperation = "fencegate-operation"
	localCode      = "fencegate-code"
)

// Send implements versitygw's metrics.Manager.
func (operations) Send(c fiber.Ctx, err error, action string, _ int64, _ int) {
	if name, isS3 := strings.CutPrefix(action, actionPrefix); isS3 {
		c.Locals(localOperation, name)
	}
	if err != nil {
		c.Locals(localCode, codeOf(err))
	}
}

// actionPrefix is what versitygw's names of S3's operations begin with.
const actionPrefix = "s3_"

// Close implements versitygw's metrics.Manager.
func (operations) Close() {}

func codeOf(err error) string {
	if e, ok := err.(s3err.S3Error); ok { //nolint:errorlint // versitygw tells them by their type, too
		return e.BaseError().Code
	}
	return "InternalError"
}

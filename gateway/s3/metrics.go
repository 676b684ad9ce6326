package s3

import (
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/metrics"
	"github.com/versity/versitygw/s3err"
)

// Metrics receives measurements. Its methods are called while clients wait, so they must be fast. They are safe for
// concurrent use.
type Metrics interface {
	// Answered reports that a request's answer was ready; took is the time since its headers had arrived. An upload is
	// committed by then; an object's bytes still follow. operation is S3's name, or [OperationNone] if the request
	// matched none. code is S3's error code, "" for success. Clients cannot invent values: there are about a hundred
	// of each.
	Answered(operation string, status int, code string, took time.Duration)
	// Committed reports that the transaction that decides an upload has ended, with or without success; took is
	// its duration.
	Committed(took time.Duration)
}

// OperationNone stands for requests that did not reach an operation.
const OperationNone = "none"

// noMetrics is a [Metrics] that discards everything.
type noMetrics struct{}

var _ Metrics = noMetrics{}

func (noMetrics) Answered(string, int, string, time.Duration) {}

func (noMetrics) Committed(time.Duration) {}

// operations records which operation versitygw found for a request, and its result. The gate reports both.
type operations struct{}

var _ metrics.Manager = operations{}

// Keys of the recorded operation and result.
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

// actionPrefix is the prefix of versitygw's names of S3's operations.
const actionPrefix = "s3_"

// Close implements versitygw's metrics.Manager.
func (operations) Close() {}

func codeOf(err error) string {
	if e, ok := err.(s3err.S3Error); ok { //nolint:errorlint // versitygw tells them by their type, too
		return e.BaseError().Code
	}
	return "InternalError"
}

package s3

import (
	"bytes"
	"encoding/xml"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
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

// Corrections to the answers of versitygw's operations.

// dedupeRequestIDs removes one of two request ids from an answer whose header names keep their case, as those of reads
// do: versitygw adds its own in lower case.
func dedupeRequestIDs(h *fasthttp.ResponseHeader) {
	for name := range h.All() {
		if string(name) == utils.HeaderAmzRequestID {
			h.Del("X-Amz-Request-Id")
			h.Del("X-Amz-Id-2")
			return
		}
	}
}

// partsCount is the key under which an object's number of parts reaches fixAttributes.
const partsCount = "fencegate parts count"

// fixAttributes adds what versitygw's answer has no field for, and writes its date in HTTP's form.
func fixAttributes(c fiber.Ctx) {
	res := c.Response()
	if at, err := time.Parse(time.ANSIC, string(res.Header.Peek(fiber.HeaderLastModified))); err == nil {
		res.Header.Set(fiber.HeaderLastModified, at.Format(http.TimeFormat))
	}
	n, known := c.RequestCtx().UserValue(partsCount).(int)
	if known && !res.IsBodyStream() {
		const element = "<ObjectParts>"
		res.SetBody(bytes.Replace(res.Body(), []byte(element), []byte(element+"<PartsCount>"+strconv.Itoa(n)+"</PartsCount>"), 1))
	}
}

// sortTags sorts tags, which versitygw writes in random order.
func sortTags(c fiber.Ctx) {
	res := c.Response()
	if !c.Request().Header.IsGet() || !c.Request().URI().QueryArgs().Has("tagging") || res.StatusCode() != fiber.StatusOK || res.IsBodyStream() {
		return
	}
	var tags s3response.Tagging
	if xml.Unmarshal(res.Body(), &tags) != nil || len(tags.TagSet.Tags) < 2 {
		return
	}
	slices.SortFunc(tags.TagSet.Tags, func(a, b s3response.Tag) int { return strings.Compare(a.Key, b.Key) })
	if sorted, err := xml.Marshal(tags); err == nil {
		res.SetBody(append([]byte(xml.Header), sorted...))
	}
}

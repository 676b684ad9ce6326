package s3

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3err"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// checkNames refuses names in the path and the query that PostgreSQL cannot store: a key, a prefix, a marker.
func checkNames(c fiber.Ctx, path string) s3err.S3Error {
	_, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if e := checkKey(key); e != nil {
		return e
	}
	for name, value := range c.Request().URI().QueryArgs().All() {
		switch {
		case !objects.ValidText(string(value)):
			return s3error.InvalidText(strings.ToValidUTF8(string(name), "?"))
		case string(name) == "partNumber" && beyondParts(string(value)):
			return s3error.Error{Code: "InvalidArgument", Status: http.StatusBadRequest, Message: "Part number must be an integer between 1 and 10000, inclusive."}
		}
	}
	return nil
}

// beyondParts reports whether a part number exceeds 32 bits: versitygw would take it for another number.
func beyondParts(text string) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return errors.Is(err, strconv.ErrRange) || err == nil && n > maxPartNumber
}

const maxPartNumber = 10_000

// checkKey refuses a key that PostgreSQL cannot store.
func checkKey(key string) s3err.S3Error {
	if err := objects.CheckKey(key); err != nil {
		return s3error.Of(err, "")
	}
	return nil
}

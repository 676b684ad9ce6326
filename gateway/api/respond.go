package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
)

// writeTimeout bounds sending one answer.
const writeTimeout = time.Minute

func extendWrite(c echo.Context) {
	// Only a test's recorder fails here: it has no deadlines.
	_ = http.NewResponseController(c.Response()).SetWriteDeadline(time.Now().Add(writeTimeout))
}

// respond writes v as JSON. Most answers hold a secret, so caches must not store them. The status is sent only once all
// of v is encoded.
func respond(c echo.Context, status int, v any) error {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	header := c.Response().Header()
	header.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	header.Set(echo.HeaderCacheControl, "no-store")
	extendWrite(c)
	c.Response().WriteHeader(status)
	_, err := c.Response().Write(body.Bytes())
	return err
}

// optionalToken omits 0, which stands for "not known": [fence.ParseToken] refuses it.
func optionalToken(t fence.Token) *fence.Token {
	if t == 0 {
		return nil
	}
	return &t
}

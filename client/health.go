package client

import (
	"context"
	"encoding/json"
	"net/http"
)

// Health asks whether the gateway's process answers. It needs no token.
func (c *Client) Health(ctx context.Context) (json.RawMessage, error) {
	return c.asked(ctx, http.MethodGet, "/healthz", nil)
}

// Ready asks whether the gateway and all that it needs can serve, and returns its parts as
// JSON. The error is a [*Problem] that names the part that can't. It needs no token.
func (c *Client) Ready(ctx context.Context) (json.RawMessage, error) {
	return c.asked(ctx, http.MethodGet, "/readyz", nil)
}

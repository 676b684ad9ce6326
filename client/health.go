package client

import (
	"context"
	"encoding/json"
	"net/http"
)

// Health asks whether the gateway's process answers. It needs no bearer token.
func (c *Client) Health(ctx context.Context) (json.RawMessage, error) {
	return c.asked(ctx, http.MethodGet, "/healthz", nil)
}

// Ready asks whether the gateway and its dependencies can serve, and returns their states as JSON. The error is a
// [*Problem] that names the unavailable part. It needs no bearer token.
func (c *Client) Ready(ctx context.Context) (json.RawMessage, error) {
	return c.asked(ctx, http.MethodGet, "/readyz", nil)
}

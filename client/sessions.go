package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/fencegate/fencegate/wire"
)

// Sessions returns the sessions on the gateway's PostgreSQL port, as JSON.
func (c *Client) Sessions(ctx context.Context) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var raw json.RawMessage
	err := c.call(ctx, http.MethodGet, "/v1/sessions", nil, &raw)
	return raw, err
}

// EndSession ends a session on the gateway's PostgreSQL port. by is the name of the operator, for the gateway's log.
func (c *Client) EndSession(ctx context.Context, id, by string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.call(ctx, http.MethodPost, "/v1/sessions/"+url.PathEscape(id)+"/end", wire.EndRequest{By: by}, nil)
}

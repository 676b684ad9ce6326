package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fencegate/fencegate/wire"
)

// Status returns the gateway's status: its nodes, PostgreSQL, and counts.
func (c *Client) Status(ctx context.Context) (wire.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var status wire.Status
	err := c.call(ctx, http.MethodGet, "/v1/status", nil, &status)
	return status, err
}

// ResourcesRequest asks for a page of resources, in the order of their names' bytes.
type ResourcesRequest struct {
	Prefix string // only names that begin with it
	After  string // only names after it: Next of the previous page
	Held   bool   // only resources with a holder; a page may then be short although another one follows
	Limit  int    // maximum, up to 1000; zero takes the gateway's default
}

// Resources returns a page of the resources that have a fence, with their holders.
func (c *Client) Resources(ctx context.Context, r ResourcesRequest) (wire.Resources, error) {
	query := url.Values{}
	for name, value := range map[string]string{"prefix": r.Prefix, "after": r.After} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if r.Held {
		query.Set("held", "true")
	}
	if r.Limit != 0 {
		query.Set("limit", strconv.Itoa(r.Limit))
	}
	path := "/v1/resources"
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var page wire.Resources
	err := c.call(ctx, http.MethodGet, path, nil, &page)
	return page, err
}

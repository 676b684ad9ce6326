package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fencegate/fencegate/wire"
)

func bucketPath(bucket string) string { return "/v1/buckets/" + url.PathEscape(bucket) }

func (c *Client) asked(ctx context.Context, method, path string, body any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var raw json.RawMessage
	err := c.call(ctx, method, path, body, &raw)
	return raw, err
}

// Buckets returns a page of the buckets after a name, as JSON.
func (c *Client) Buckets(ctx context.Context, after string, limit int) (json.RawMessage, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if after != "" {
		query.Set("after", after)
	}
	return c.asked(ctx, http.MethodGet, "/v1/buckets?"+query.Encode(), nil)
}

// Bucket returns a bucket's settings, as JSON.
func (c *Client) Bucket(ctx context.Context, bucket string) (json.RawMessage, error) {
	return c.asked(ctx, http.MethodGet, bucketPath(bucket), nil)
}

// SetBucket creates a bucket with a rule, or changes the settings of an existing one. Empty fields stay as they are.
func (c *Client) SetBucket(ctx context.Context, bucket string, want wire.BucketRequest) (json.RawMessage, error) {
	return c.asked(ctx, http.MethodPut, bucketPath(bucket), want)
}

// SetPrefixRule sets a rule for the keys below a prefix.
func (c *Client) SetPrefixRule(ctx context.Context, bucket, prefix, rule string) (json.RawMessage, error) {
	return c.asked(ctx, http.MethodPut, bucketPath(bucket)+"/rules", wire.PrefixRule{Prefix: prefix, Rule: rule})
}

// DropPrefixRule removes the rule of a prefix.
func (c *Client) DropPrefixRule(ctx context.Context, bucket, prefix string) (json.RawMessage, error) {
	return c.asked(ctx, http.MethodDelete, bucketPath(bucket)+"/rules?"+url.Values{"prefix": {prefix}}.Encode(), nil)
}

package blob

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// OpenAt opens the store at a location: a folder, "PATH" or "dir:PATH", or a
// bucket of an S3 service, see [ParseS3]. It connects to nothing yet.
func OpenAt(ctx context.Context, location string) (Store, error) {
	if isS3(location) {
		cfg, err := ParseS3(location)
		if err != nil {
			return nil, err
		}
		return OpenS3(ctx, cfg)
	}
	return OpenDir(strings.TrimPrefix(location, "dir:"))
}

// OpenExisting is [OpenAt] for a store that a gateway has made before. It refuses a folder that is no store, because
// its name is mistyped or its disk not mounted, and creates nothing in it.
func OpenExisting(ctx context.Context, location string) (Store, error) {
	if dir := FolderOf(location); dir != "" {
		if err := hasFolders(dir); err != nil {
			return nil, err
		}
	}
	return OpenAt(ctx, location)
}

// FolderOf returns the folder that a location names, or "" for another kind of store.
func FolderOf(location string) string {
	if isS3(location) {
		return ""
	}
	return strings.TrimPrefix(location, "dir:")
}

func isS3(location string) bool { return strings.HasPrefix(location, "s3:") }

// ParseS3 parses s3://BUCKET[/PREFIX][?endpoint=URL][&region=R][&path-style=true|false][&connections=N]. Credentials
// are not allowed in it: they come from the environment, see [OpenS3]. Errors contain no part of the address that could
// be a secret.
func ParseS3(location string) (S3Config, error) {
	u, err := url.Parse(location)
	switch {
	case err != nil || u.Scheme != "s3" || u.Opaque != "":
		return S3Config{}, errors.New("blob address: it must read s3://BUCKET/PREFIX?endpoint=URL&region=REGION")
	case u.User != nil:
		return S3Config{}, errors.New("blob address: it must not contain credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or another source that the AWS SDKs read")
	case u.Host == "" || u.Port() != "" || u.Fragment != "":
		return S3Config{}, errors.New("blob address: it names no bucket; it must read s3://BUCKET/PREFIX?endpoint=URL&region=REGION")
	}
	cfg := S3Config{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/")}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return S3Config{}, errors.New("blob address: what follows the ? is malformed")
	}
	for name, values := range query {
		value := values[len(values)-1]
		switch name {
		case "endpoint":
			cfg.Endpoint, cfg.PathStyle = value, cfg.PathStyle || !query.Has("path-style")
		case "region":
			cfg.Region = value
		case "path-style":
			cfg.PathStyle, err = strconv.ParseBool(value)
		case "connections":
			cfg.Connections, err = strconv.Atoi(value)
			if err == nil && cfg.Connections < 1 {
				err = errors.New("less than one")
			}
		default:
			return S3Config{}, fmt.Errorf("blob address: there is no parameter %q; there are endpoint, region, path-style and connections", name)
		}
		if err != nil {
			return S3Config{}, fmt.Errorf("blob address: %s can't be %q", name, value)
		}
	}
	return cfg, cfg.validate()
}

func (c S3Config) validate() error {
	if c.Bucket == "" {
		return errors.New("blob address: it names no bucket")
	}
	if c.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return errors.New("blob address: the endpoint must be http://HOST[:PORT] or https://HOST[:PORT], and nothing more")
	}
	return nil
}

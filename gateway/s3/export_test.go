//go:build unix

package s3

import (
	"maps"
	"slices"

	"github.com/fencegate/fencegate/gateway/blob"
)

// WarmUp makes a first batch of reserved blobs, as the uploads before it do in a
// server that has been at work.
func (s *Server) WarmUp() { s.backend.writer.WarmUp() }

// Reserved are the blobs that are kept ready. It is not settled while a batch is announced.
func (s *Server) Reserved() (ids []blob.ID, settled bool) { return s.backend.writer.Reserved() }

// Route is a route as a client sees it.
type Route struct {
	Method, Sub, And, Header string
	Bucket, Object           bool // which the path names
	Served                   bool
	Signed, Form             bool // by its headers or URL; in a browser's form
}

// Routes are all that the port has.
func Routes() (all []Route) {
	for _, p := range places {
		for _, r := range p.routes {
			all = append(all, Route{
				Method: p.method, Sub: r.sub, And: r.and, Header: r.header, Bucket: p.level == ofBucket, Object: p.level == ofObject,
				Served: r.served(), Signed: !r.steps.has(open | anonymous | form), Form: r.steps.has(form),
			})
		}
	}
	return all
}

// Subresources are those of S3 that the port knows, served or not.
func Subresources() []string { return slices.Sorted(maps.Keys(subresources)) }

//go:build unix

package s3

import (
	"maps"
	"slices"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
)

// WarmUp reserves a first batch of blobs, as earlier uploads would have done.
func (s *Server) WarmUp() { s.backend.writer.WarmUp() }

// Reserved returns the reserved blobs. settled is false while a batch is being announced.
func (s *Server) Reserved() (ids []blob.ID, settled bool) { return s.backend.writer.Reserved() }

// SetPatience sets how long a copy may take before its answer begins.
func (o *Options) SetPatience(d time.Duration) { o.patience = d }

// SetLingering sets how long a refused client is heard.
func (o *Options) SetLingering(d time.Duration) { o.lingering = d }

// Route is a route as a client sees it.
type Route struct {
	Method, Sub, And, Header string
	Bucket, Object           bool // named by the path
	Served                   bool
	Signed                   bool // by headers or URL
}

// Routes returns all routes of the port.
func Routes() (all []Route) {
	for _, p := range routeTable {
		for _, r := range p.routes {
			all = append(all, Route{
				Method: p.method, Sub: r.sub, And: r.and, Header: r.header, Bucket: p.level == ofBucket, Object: p.level == ofObject,
				Served: r.served(), Signed: !r.steps.has(open | anonymous),
			})
		}
	}
	return all
}

// Subresources returns S3's sub-resources that the port knows, served or not.
func Subresources() []string {
	return slices.Sorted(maps.Keys(newRouter(routeTable, otherSubresources).subresources))
}

// CopyClients returns how many clients wait for copies.
func (s *Server) CopyClients() (n int) {
	c := s.backend.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, run := range c.running {
		n += run.waiting
	}
	return n
}

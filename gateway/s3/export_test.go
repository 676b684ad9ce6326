//go:build unix

package s3

import "github.com/fencegate/fencegate/gateway/blob"

// WarmUp makes a first batch of reserved blobs, as the uploads before it do in a
// server that has been at work.
func (s *Server) WarmUp() {
	r := s.backend.reserve
	if r.max > 0 {
		r.mu.Lock()
		r.filling = true
		r.mu.Unlock()
		r.fill(min(minReserve, r.max))
	}
}

// Reserved are the blobs that are kept ready. PostgreSQL can't say it: their rows
// look like those of uploads under way. It is not settled while a batch is announced.
func (s *Server) Reserved() (ids []blob.ID, settled bool) {
	r := s.backend.reserve
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.free {
		ids = append(ids, one.id)
	}
	return ids, !r.filling
}

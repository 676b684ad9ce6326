package s3

import "sync/atomic"

// slots limit how many of a kind are in progress.
type slots struct {
	limit int64
	used  atomic.Int64
}

// take takes a slot, and returns false if none is free.
func (s *slots) take() bool {
	if s.used.Add(1) > s.limit {
		s.used.Add(-1)
		return false
	}
	return true
}

func (s *slots) free() { s.used.Add(-1) }

package access

import "sync"

// Shares are places of which each principal takes a quarter at most, and at least two, so that none takes all. They are
// safe for concurrent use.
type Shares struct {
	all, each int

	mu   sync.Mutex
	used int
	of   map[string]int // without principals that have none
}

// NewShares returns Shares of this many places.
func NewShares(all int) *Shares {
	return &Shares{all: all, each: max(2, all/4), of: map[string]int{}}
}

// Take takes a place, and leave returns it; false: there is none for this principal. [Everybody], which may be many
// clients, may take all places.
func (s *Shares) Take(p *Principal) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= s.all || !p.all && s.of[p.name] >= s.each {
		return nil, false
	}
	s.used++
	s.of[p.name]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.used--
		if s.of[p.name]--; s.of[p.name] == 0 {
			delete(s.of, p.name)
		}
	}), true
}

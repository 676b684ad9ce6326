package pgwire

// Taken returns how many of [Options.MaxConnections] are taken.
func (s *Server) Taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places
}

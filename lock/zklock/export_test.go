package zklock

// Vanish ends the source as a process that is killed: nothing more is said to ZooKeeper.
func Vanish(s *Source) {
	s.store.mu.Lock()
	for _, h := range s.store.holds {
		h.timer.Stop()
	}
	s.store.mu.Unlock()
	s.store.session.close(true)
	_ = s.common.Close()
}

package lock

// Waiting is how many callers of this Locker are in line for a resource.
func (l *Locker) Waiting(resource string) int {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	return len(l.lines.of[resource])
}

package lock

// Waiting is how many callers of this Locker are in line for a resource.
func (l *Locker) Waiting(resource string) int {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	return len(l.lines.of[resource])
}

// Attempts is how often this Locker asked the nodes for a lock.
func (l *Locker) Attempts() int64 { return l.attempts.Load() }

// Home is the index of the node that keeps a resource's queue.
func (l *Locker) Home(resource string) int { return l.home(resource) }

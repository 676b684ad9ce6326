package kubelock

import "time"

// Deadline is when a Lock's term ends unless it renews the Lease.
func Deadline(l *Lock) time.Time {
	l.term.mu.Lock()
	defer l.term.mu.Unlock()
	return l.term.deadline
}

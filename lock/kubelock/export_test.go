package kubelock

import "time"

// Deadline is when a Lock's term ends unless it renews the Lease.
func Deadline(l *Lock) time.Time {
	l.term.mu.Lock()
	defer l.term.mu.Unlock()
	return l.term.deadline
}

// Lose ends a Lock's term, as a release does first.
func Lose(l *Lock) { _ = l.term.lose(errReleased) }

// StopTimer is what a pause of the process does to a term's timer.
func StopTimer(l *Lock) {
	l.term.mu.Lock()
	defer l.term.mu.Unlock()
	l.term.timer.Stop()
}

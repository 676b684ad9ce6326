package kubelock

import "time"

// Deadline returns when a Lock's term ends unless it renews the Lease.
func Deadline(l *Lock) time.Time {
	l.term.mu.Lock()
	defer l.term.mu.Unlock()
	return l.term.deadline
}

// Lose ends a Lock's term, as the first step of a release.
func Lose(l *Lock) { _ = l.term.lose(errReleased) }

// StopTimer stops a term's timer, as a pause of the process does.
func StopTimer(l *Lock) {
	l.term.mu.Lock()
	defer l.term.mu.Unlock()
	l.term.timer.Stop()
}

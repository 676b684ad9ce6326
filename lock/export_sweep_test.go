package lock

// SweepSoon makes the next try for a lock look whether the counters have to be swept.
func (l *Locker) SweepSoon() { l.attempts.Store(sweepEvery - 1) }

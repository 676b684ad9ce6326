package lock

// SweepEvery has one in so many tries for a lock look whether the counters have to be swept. Before the first try.
func (l *Locker) SweepEvery(tries int64) { l.sweepEvery = tries }

package lock

// SweepEvery makes on average one in so many tries for a lock check whether to sweep. Call it before the first try.
func (l *Locker) SweepEvery(tries int64) { l.sweepEvery = tries }

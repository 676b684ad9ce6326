package pgfence

import "time"

// GiveTime lets groups take as long as a busy machine needs, and hold up the next.
func GiveTime(f *Fence) {
	f.armings.Timeout, f.endings.Timeout = time.Minute, time.Minute
	f.armings.Pace, f.endings.Pace = time.Hour, time.Hour
}

// Waiting is how many calls wait for the group before them.
func Waiting(f *Fence) int { return f.armings.Waiting() + f.endings.Waiting() }

package pgfence

import "time"

// GiveTime raises the time limits of groups, and of reading the floors: on a busy machine either may take longer.
func GiveTime(f *Fence) {
	f.armings.Timeout, f.endings.Timeout = time.Minute, time.Minute
	f.floors.timeout = time.Minute
	f.armings.Pace, f.endings.Pace = time.Hour, time.Hour
}

// Waiting is the number of calls that wait for the previous group.
func Waiting(f *Fence) int { return f.armings.Waiting() + f.endings.Waiting() }

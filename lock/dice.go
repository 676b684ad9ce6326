package lock

import "time"

// dice draws how long to wait at random: a number from 0, and less than n.
type dice func(n int64) int64

// random is a random time from 0, and less than d.
func (r dice) random(d time.Duration) time.Duration { return time.Duration(r(int64(d))) }

// jitter is a random wait between two tries that all processes may make.
func (r dice) jitter() time.Duration { return 50*time.Millisecond + r.random(200*time.Millisecond) }

// between is a random time that grows with the number of failures.
func (r dice) between(first, most time.Duration, failed int) time.Duration {
	longest := min(first<<min(failed, 10), most)
	return longest/2 + r.random(longest/2+1)
}

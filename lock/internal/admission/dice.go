package admission

import (
	"context"
	"time"
)

func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Dice draws how long to wait at random: a number from 0, and less than n.
type Dice func(n int64) int64

// Random is a random time from 0, and less than d.
func (r Dice) Random(d time.Duration) time.Duration { return time.Duration(r(int64(d))) }

// jitter is a random wait between two tries that all processes may make.
func (r Dice) jitter() time.Duration { return 50*time.Millisecond + r.Random(200*time.Millisecond) }

// Between is a random time that grows with the number of failures.
func (r Dice) Between(first, most time.Duration, failed int) time.Duration {
	longest := min(first<<min(failed, 10), most)
	return longest/2 + r.Random(longest/2+1)
}

package lock

import (
	"context"
	"slices"
	"time"
)

// Returns is the time until enough nodes are out of quarantine for a quorum. 0: there is a quorum, or the time is
// unknown.
func (l *Locker) Returns(ctx context.Context) time.Duration {
	needed := l.quorum
	var left []time.Duration
	for _, st := range l.Status(ctx) {
		switch {
		case st.Err != nil:
		case st.Admitted:
			needed--
		case st.Quarantine > 0:
			left = append(left, st.Quarantine)
		}
	}
	if needed <= 0 || needed > len(left) {
		return 0
	}
	slices.Sort(left)
	return left[needed-1]
}

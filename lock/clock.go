package lock

import "time"

// instant is a moment on two clocks: the monotonic one of Go's timers, and one that also runs during a suspension.
type instant struct {
	mono time.Time
	boot time.Duration
}

func now() instant {
	t := time.Now()
	return instant{mono: t, boot: sinceBootAt(t)}
}

func (i instant) add(d time.Duration) instant {
	return instant{mono: i.mono.Add(d), boot: i.boot + d}
}

// passed reports whether the moment is reached on either clock.
func (i instant) passed() bool { return i.left() <= 0 }

// left is the time until then, by the clock that is closer to it. It is not positive when the moment has passed.
func (i instant) left() time.Duration {
	t := time.Now()
	return min(i.mono.Sub(t), i.boot-sinceBootAt(t))
}

// earlier is the earlier of two moments.
func (i instant) earlier(j instant) instant {
	return instant{mono: minTime(i.mono, j.mono), boot: min(i.boot, j.boot)}
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

package activity

import "sort"

// ring has the latest events of a kind, or of all.
type ring struct {
	keep    int
	kept    []numbered // event i, counted from 0, is at i % keep
	added   uint64     // how many came
	dropped uint64     // the number of the latest one that is gone; 0: none is
}

// numbered is an event with its place among all events.
type numbered struct {
	number uint64
	event  Event
}

func (r *ring) add(number uint64, e Event) {
	if len(r.kept) < r.keep {
		r.kept = append(r.kept, numbered{number, e})
	} else {
		at := r.at(r.added)
		r.dropped = at.number
		*at = numbered{number, e}
	}
	r.added++
}

func (r *ring) at(i uint64) *numbered { return &r.kept[i%uint64(r.keep)] }

// oldest is the first event that is kept.
func (r *ring) oldest() uint64 { return r.added - uint64(len(r.kept)) }

// after is the first kept event whose number is above this one.
func (r *ring) after(number uint64) uint64 {
	oldest := r.oldest()
	return oldest + uint64(sort.Search(len(r.kept), func(i int) bool { return r.at(oldest+uint64(i)).number > number }))
}

// lost is how many events with a number above this one are gone. 0: that is not known, as
// where events that the ring does not have lie between.
func (r *ring) lost(number uint64) uint64 {
	if r.dropped != r.oldest() { // the ring is not of all events
		return 0
	}
	return r.dropped - number
}

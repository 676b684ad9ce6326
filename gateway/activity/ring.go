package activity

import "sort"

// ring holds the latest events of one kind, or of all.
type ring struct {
	keep    int
	kept    []entry // event i, counted from 0, is at i % keep
	added   uint64  // how many were added
	dropped uint64  // the number of the latest dropped event; 0: none
}

// entry is an event with its number among all events.
type entry struct {
	number uint64
	event  Event
}

func (r *ring) add(number uint64, e Event) {
	if len(r.kept) < r.keep {
		r.kept = append(r.kept, entry{number, e})
	} else {
		at := r.at(r.added)
		r.dropped = at.number
		*at = entry{number, e}
	}
	r.added++
}

func (r *ring) at(i uint64) *entry { return &r.kept[i%uint64(r.keep)] }

// oldest is the index of the first kept event.
func (r *ring) oldest() uint64 { return r.added - uint64(len(r.kept)) }

// after is the index of the first kept event whose number is above this one.
func (r *ring) after(number uint64) uint64 {
	oldest := r.oldest()
	return oldest + uint64(sort.Search(len(r.kept), func(i int) bool { return r.at(oldest+uint64(i)).number > number }))
}

// lost is how many events with a number above this one were dropped. 0: not known, because the ring does not hold all
// events in between.
func (r *ring) lost(number uint64) uint64 {
	if r.dropped != r.oldest() { // the ring does not hold all events
		return 0
	}
	return r.dropped - number
}

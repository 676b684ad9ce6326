package history

// Pace is what the machine did for the run during about a second: see package machine.
type Pace struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Lost is the part of the time that other programs, or the disk, took from the run: as if the machine had stood still.
	Lost int64 `json:"lost"`

	// What Lost is computed from.
	Took   int64   `json:"took"`   // how long the yardstick's work took, on average
	Least  int64   `json:"least"`  // and in the best case of the run
	Worst  int64   `json:"worst"`  // and in the worst case of this second
	Disk   int64   `json:"disk"`   // the longest write to the disk
	Others float64 `json:"others"` // the part of the machine's processor time that went to other programs
}

// Paces are the paces of a run, in order.
type Paces []Pace

// Lost is how much of the time between two moments was lost.
func (p Paces) Lost(from, to int64) (lost int64) {
	for _, s := range p {
		if a, b := max(s.From, from), min(s.To, to); b > a {
			lost += int64(float64(s.Lost) * float64(b-a) / float64(s.To-s.From))
		}
	}
	return lost
}

// After is the moment at which d has passed since a moment, without the time that was lost.
func (p Paces) After(from, d int64) int64 {
	at := from
	for _, s := range p {
		a := max(s.From, at)
		if s.To <= at || a-at >= d {
			continue
		}
		d -= a - at // between two paces nothing is lost
		kept := s.To - a - Paces{s}.Lost(a, s.To)
		if kept >= d {
			return a + int64(float64(d)*float64(s.To-a)/float64(max(kept, 1)))
		}
		at, d = s.To, d-kept
	}
	return at + d
}

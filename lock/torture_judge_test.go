//go:build linux

package lock_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
)

var recordSize = binary.Size(record{})

func readRecords(text []byte) []record {
	records := make([]record, len(text)/recordSize)
	if err := binary.Read(bytes.NewReader(text), binary.NativeEndian, records); err != nil {
		panic(err)
	}
	return records
}

// findings are the results of a run's histories.
type findings struct {
	scenario     scenario
	lasted       time.Duration
	counts       *faultCounts
	acquisitions int
	failed       int64
	duplicates   int
	inversions   int
	overlaps     int           // acquisitions whose lease began during another's
	longest      time.Duration // the longest time for which a resource had two leases
	late         int64
	kept         int64 // resources that were not free once they were released
}

// judge checks each resource separately. The last record of an acquisition has the time of its end.
func judge(records []record) findings {
	last := make(map[uint64]record, len(records))
	for _, r := range records {
		last[r.ID] = r
	}
	type resource struct{ number, generation uint32 }
	spans := make(map[resource][]span)
	acquired := make(map[resource][]acquisition)
	at := func(d time.Duration) time.Time { return time.Unix(0, int64(d)) }
	for _, r := range last {
		which := resource{r.Resource, r.Generation}
		spans[which] = append(spans[which], span{r.From, r.To})
		acquired[which] = append(acquired[which], acquisition{at(r.Begun), at(r.Done), fence.Token(r.Token)})
	}
	f := findings{acquisitions: len(last)}
	for which := range acquired {
		duplicates, inversions := verify(acquired[which])
		count, longest := overlaps(spans[which])
		f.duplicates += duplicates
		f.inversions += inversions
		f.overlaps += count
		f.longest = max(f.longest, longest)
	}
	return f
}

func (f findings) String() string {
	share := 0.0
	if f.acquisitions > 0 {
		share = 100 * float64(f.overlaps) / float64(f.acquisitions)
	}
	text := fmt.Sprintf("%v: %d acquisitions, %d duplicates, %d inversions, %d overlaps (%.3f %%, at most %.1f ms), %d late looks, %d released and not free",
		f.scenario, f.acquisitions, f.duplicates, f.inversions, f.overlaps, share, float64(f.longest)/1e6, f.late, f.kept)
	if f.counts == nil {
		return text
	}
	c := f.counts
	return text + fmt.Sprintf("; in %.0f s (%.0f/s), %d tries failed; nodes: %d killed (%d with their log cut), %d flushed, %d stopped, %d jumps of a clock; "+
		"%d replies lost, %d times messages held up; clients: %d stopped",
		f.lasted.Seconds(), float64(f.acquisitions)/f.lasted.Seconds(), f.failed,
		c.kills.Load(), c.cuts.Load(), c.flushes.Load(), c.freezes.Load(), c.jumps.Load(), c.lost.Load(), c.taken.Load(), c.stops.Load())
}

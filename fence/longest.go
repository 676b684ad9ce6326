package fence

import "time"

// LongestTTL is the longest TTL that may be in use, as it is recorded where no node's loss reaches it.
type LongestTTL struct {
	TTL    time.Duration // no lease that was granted under this record lasts longer
	Record int64         // rises each time that the record begins anew
	Kept   bool          // it counts: all nodes of the group were admitted under this record
}

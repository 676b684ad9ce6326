package fence

import "time"

// LongestTTL is the longest TTL that may be in use. It is recorded in PostgreSQL, so it survives the loss of lock
// nodes.
type LongestTTL struct {
	TTL    time.Duration // no lease granted under this record lasts longer
	Record int64         // increases whenever the record starts over
	Kept   bool          // the record is valid: all nodes of the group were admitted under it
}
